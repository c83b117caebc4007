"""Where each rank stands: the axes of the mesh, each rank's place along them, and where ranks contradict one another.

From the events `mesh` and `placements` of each rank's newest process. What a rank has not said is unknown: it has no
place then, and is compared with nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rangewatch.wire.events import Mesh as RankMesh
from rangewatch.wire.events import MeshAxis, Placements
from rangewatch_server.core.text import ranks_text
from rangewatch_server.query.reader import RunReader

MOST_PROBLEMS = 20
MOST_AXES = 16
MOST_MEMBERS = 1 << 21
"""Ranks along all axes that are not equal, together: of 1,024 ranks with six axes 100,000. Whoever may send can send
any; ranks that come after so many have no place."""
ALL_RANKS = "all ranks"
"""In place of an axis: what `attach(replicated=True)` says so of."""

MOST_STAGES = 64
MOST_LAYERS = 400
"""Of a stage, those that are listed."""


Ranks = tuple[int, ...]


class Problem(msgspec.Struct, frozen=True):
    """A sentence, and the ranks that it is of."""

    text: str
    ranks: Ranks


class Mesh(msgspec.Struct, frozen=True):
    """Of a run. `axes`: (name, size), the outermost first, as most ranks say. `joined`: those of them that are several
    others in one, such as "dp_cp". `places`: rank -> axis -> its place along it; `members`: the ranks along it."""

    source: str = ""
    axes: tuple[tuple[str, int], ...] = ()
    joined: frozenset[str] = frozenset()
    places: Mapping[int, Mapping[str, int]] = {}
    members: Mapping[int, Mapping[str, Ranks]] = {}
    problems: tuple[Problem, ...] = ()

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """Axis -> place along it; {} where it is unknown."""
        return self.places.get(rank, {})

    def place_text(self, rank: int) -> str:
        """Such as "pp 0, dp 1, tp 1"; "" where it is unknown."""
        known = self.coordinates(rank)
        shown = (name for name, size in self.axes if size > 1 and name not in self.joined and name in known)
        return ", ".join(f"{name} {known[name]}" for name in shown)

    def deciding(self, groups: Iterable[Collection[int]]) -> tuple[str, ...]:
        """The axes by whose place alone it is decided which of these groups a rank is in; none where none is."""
        known = [[self.places[rank] for rank in group if rank in self.places] for group in groups]
        if len(known) < 2 or not all(known):
            return ()
        found = []
        for name, size in self.axes:
            places = [{place[name] for place in each if name in place} for each in known]
            if size > 1 and name not in self.joined and len(set.union(*places)) == sum(map(len, places)) > 1:
                found.append(name)
        return tuple(found)

    def groups_along(self, axes: Collection[str], ranks: Iterable[int]) -> list[Ranks]:
        """These ranks in groups of those that are along these axes of one another; the first rank's group first."""
        parents: dict[int, int] = {rank: rank for rank in ranks}

        def top(rank: int) -> int:
            while parents[rank] != rank:
                parents[rank] = rank = parents[parents[rank]]
            return rank

        known = (self.members.get(rank, {}) for rank in parents)
        lines = {id(each[name]): each[name] for each in known for name in axes if name in each}
        for line in [tuple(parents)] if ALL_RANKS in axes else lines.values():
            here = [rank for rank in line if rank in parents]
            for rank in here[1:]:
                parents[top(rank)] = top(here[0])
        groups: dict[int, list[int]] = defaultdict(list)
        for rank in parents:
            groups[top(rank)].append(rank)
        return sorted(tuple(sorted(group)) for group in groups.values())


def mesh_of(run: RunReader) -> Mesh:
    """Of the ranks of the newest world; those that an elastic restart has left behind say nothing of it."""
    return run.made_of_newest(RankMesh.KIND, _mesh_of)


def _mesh_of(run: RunReader) -> Mesh:
    size = world_size(run)
    said = {
        event.rank: details
        for event in run.newest_events([RankMesh.KIND])
        if run.ranks[event.rank].info.world_size == size and (details := event.read(RankMesh)) is not None
    }
    return joined_mesh({rank: said[rank] for rank in sorted(said)})


def world_size(run: RunReader) -> int:
    """As the process that was opened last says."""
    newest = max(run.ranks.values(), key=lambda rank: rank.row.id, default=None)
    return newest.info.world_size if newest else 0


def joined_mesh(said: Mapping[int, RankMesh]) -> Mesh:
    """Of what ranks said, ascending."""
    known = {
        rank: {axis.name: axis for axis in each.axes[:MOST_AXES] if _is_sound(axis, rank)}
        for rank, each in said.items()
    }
    shapes = Counter(tuple((axis.name, axis.size) for axis in axes.values()) for axes in known.values() if axes)
    if not shapes:
        return Mesh()
    shape = max(shapes, key=lambda each: (shapes[each], len(each)))
    lines: dict[Ranks, Ranks] = {}  # each once: of 1,024 replicas all have the same 1,024
    members: dict[int, dict[str, Ranks]] = {rank: {} for rank in known}
    left = MOST_MEMBERS
    for rank, axes in known.items():
        for name, axis in axes.items():
            if left <= 0:
                break
            left -= axis.size if axis.members not in lines else 0
            members[rank][name] = lines.setdefault(axis.members, axis.members)
    places = {rank: {name: known[rank][name].index for name in axes} for rank, axes in members.items()}
    sizes = dict(shape)
    for axes in known.values():  # of a pipeline's stages some may know axes that others do not
        sizes = {axis.name: axis.size for axis in axes.values()} | sizes
    source = Counter(each.source for each in said.values() if each.axes).most_common(1)[0][0]
    problems = tuple(_problems(said, members, sizes))[:MOST_PROBLEMS]
    return Mesh(source, tuple(sizes.items()), frozenset(_joined(sizes, members)), places, members, problems)


def _is_sound(axis: MeshAxis, rank: int) -> bool:
    ranks = axis.members
    return len(ranks) == axis.size and axis.index < axis.size and ranks[axis.index] == rank


def _joined(sizes: Mapping[str, int], members: Mapping[int, Mapping[str, Ranks]]) -> Iterator[str]:
    """Axes whose ranks hold those of two or more other axes."""
    for name in sizes:
        axes = next((axes for axes in members.values() if name in axes), {})
        inside = [each for each in axes if each != name and sizes[each] > 1 and set(axes[each]) < set(axes[name])]
        if len(inside) > 1:
            yield name


def _problems(
    said: Mapping[int, RankMesh], members: Mapping[int, Mapping[str, Ranks]], sizes: Mapping[str, int]
) -> Iterator[Problem]:
    own: dict[str, list[int]] = defaultdict(list)
    for rank, each in said.items():
        for text in each.problems:
            own[text].append(rank)
        for axis in each.axes:
            if axis.name not in members[rank] and not _is_sound(axis, rank):
                own[f"its place along {axis.name} is not among the ranks that it names"].append(rank)
    for text, ranks in own.items():
        yield Problem(f"{ranks_text(ranks).capitalize()}: {text}.", tuple(ranks))
    for name, size in sizes.items():
        yield from _of_axis(name, {rank: axes[name] for rank, axes in members.items() if name in axes}, size)


def _of_axis(name: str, lines: Mapping[int, Ranks], size: int) -> Iterator[Problem]:
    """`lines`: rank -> the ranks along the axis, as it says."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for rank, line in lines.items():
        by_size[len(line)].append(rank)
    for other, ranks in by_size.items():
        if other != size:
            usual = ranks_text(by_size[size])
            yield Problem(f"{name} has {other} ranks on {ranks_text(ranks)}, and {size} on {usual}.", tuple(ranks))
    for line in {id(line): line for line in lines.values() if len(line) == size}.values():
        odd = [rank for rank in line if len(lines.get(rank, ())) == size and lines[rank] is not line]
        sayers = [rank for rank in line if lines.get(rank) is line]
        if odd:
            yield Problem(
                f"Along {name}, {ranks_text(sayers)} {'has' if len(sayers) == 1 else 'have'} {_listed(line)}, and "
                f"rank {odd[0]} of these has {_listed(lines[odd[0]])}.",
                tuple(sorted({*sayers, odd[0]})),
            )
            return


def _listed(ranks: Ranks) -> str:
    """In the order of the axis."""
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown} and {len(ranks) - 8} more" if len(ranks) > 8 else f"ranks {shown}"


def placements_of(run: RunReader) -> Mapping[int, Placements]:
    """By rank, as its newest process says."""
    return run.made_of_newest(Placements.KIND, _placements_of)


def _placements_of(run: RunReader) -> dict[int, Placements]:
    read: dict[bytes, Placements | None] = {}
    by_rank = {}
    for event in run.newest_events([Placements.KIND]):
        if event.data not in read:  # ranks of one stage say the same
            read[event.data] = event.read(Placements)
        details = read[event.data]
        if details is not None:
            by_rank[event.rank] = details
    return by_rank


def alike_along(placements: Placements, parameter: str) -> tuple[str, ...]:
    """Axes along which all ranks must hold the same of a parameter."""
    group = placements.parameters.get(parameter)
    return placements.groups[group].alike if group is not None and group < len(placements.groups) else ()


def mesh_answer(run: RunReader) -> dict[str, Any]:
    """The answer of docs/api.md: axes, ranks, placements and stages."""
    mesh, placements = mesh_of(run), placements_of(run)
    return summary(mesh) | {
        "ranks": [{"rank": rank, "coordinates": mesh.coordinates(rank)} for rank in sorted(run.ranks)],
        "placements": _placements(placements),
        "stages": _stages(mesh, placements),
    }


def summary(mesh: Mesh) -> dict[str, Any]:
    """As a run's own page has it."""
    return {
        "source": mesh.source or None,
        "axes": [{"name": name, "size": size, "is_joined": name in mesh.joined} for name, size in mesh.axes],
        "problems": [msgspec.to_builtins(each) for each in mesh.problems],
    }


def _placements(placements: Mapping[int, Placements]) -> list[dict[str, Any]]:
    """Each kind of placement, with its parameters and the ranks that say so: of ranks that are alike the first."""
    ranks_of: dict[tuple[Any, ...], tuple[dict[str, None], list[int]]] = {}
    for rank, details in sorted(placements.items()):
        by_group: dict[int, list[str]] = defaultdict(list)
        for name, group in details.parameters.items():
            by_group[group].append(name)
        for at, placement in enumerate(details.groups):
            names, ranks = ranks_of.setdefault((tuple(placement.axes.items()), placement.alike), ({}, []))
            names.update(dict.fromkeys(by_group[at]))
            ranks.append(rank)
    return [
        {"axes": dict(axes), "alike": list(alike), "parameters": list(names), "ranks": ranks}
        for (axes, alike), (names, ranks) in ranks_of.items()
    ]


def _stages(mesh: Mesh, placements: Mapping[int, Placements]) -> list[dict[str, Any]]:
    """Along "pp": what each stage holds, in the order of its model, under the names that its ranks give."""
    parameters: dict[int, dict[str, None]] = {}
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(mesh.places):
        stage = mesh.coordinates(rank).get("pp")
        if stage is not None:
            ranks_of[stage].append(rank)
            if rank in placements:
                parameters.setdefault(stage, {}).update(dict.fromkeys(placements[rank].parameters))
    return [
        {"stage": stage, "ranks": ranks_of[stage], "parameter_count": len(parameters[stage]),
         "layers": list(dict.fromkeys(map(_layer, parameters[stage])))[:MOST_LAYERS]}
        for stage in sorted(parameters)[:MOST_STAGES]
    ]  # fmt: skip


def _layer(parameter: str) -> str:
    """Its module, up to the first number: `model.layers.3`, `norm`."""
    parts = parameter.split(".")[:-1]
    number = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: number + 1]) or parameter
