"""What ranks say of a step as a series that only some steps have: at which steps, of which ranks, and since when.

Steps are found in the stream of all ranks merged; ranks themselves are asked at a few steps alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.machines.mesh import Mesh, Ranks
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence

MOST_READ = 256
"""Ranks whose values are read at a step: of more, whole groups of those that are compared, the first ones."""

FAR = 4_096
"""Steps back in which the last that has a value is searched for."""

DATA, TENSOR, STAGES, SEQUENCE = "data", "tensor", "stages", "sequence"
_ROLES = {
    "dp": DATA, "ddp": DATA, "fsdp": DATA, "hsdp": DATA, "data": DATA, "replicate": DATA, "shard": DATA,
    "tp": TENSOR, "tensor": TENSOR, "mp": TENSOR, "model": TENSOR,
    "pp": STAGES, "pipe": STAGES, "pipeline": STAGES, "stage": STAGES,
    "cp": SEQUENCE, "sp": SEQUENCE, "context": SEQUENCE, "sequence": SEQUENCE, "ulysses": SEQUENCE, "ring": SEQUENCE,
}  # fmt: skip


def role(axis: str) -> str:
    """What an axis of this name is for; "" where the name does not say so."""
    return _ROLES.get(axis.lower().partition("_")[0], "")


def axes_of(known: Mesh, *roles: str) -> tuple[str, ...]:
    """The axes of more than one rank that are for one of these."""
    return tuple(name for name, size in known.axes if size > 1 and name not in known.joined and role(name) in roles)


def groups_but(known: Mesh, axes: Collection[str], ranks: Iterable[int]) -> list[Ranks]:
    """Ranks in groups whose places differ along these axes alone; those of one rank are left out."""
    others = [name for name, size in known.axes if size > 1 and name not in known.joined and name not in axes]
    groups: dict[tuple[int | None, ...], list[int]] = {}
    wanted = frozenset(axes)
    for rank in ranks:  # a thousand at each evaluation, several times: lists, which take half of what generators do
        place = known.coordinates(rank)
        if not wanted.isdisjoint(place):
            groups.setdefault(tuple([place.get(name) for name in others]), []).append(rank)
    return [tuple(each) for each in groups.values() if len(each) > 1]


def cut(groups: Sequence[Ranks], most: int = MOST_READ) -> list[Ranks]:
    """The first of them, of so many ranks as may be read; of one that is larger its first ranks."""
    shown, left = [], most
    for group in groups:
        if left < 2:
            break
        shown.append(group[:left])
        left -= len(group)
    return shown


def started(evidence: Evidence) -> int:
    """The first step that the newest process of every rank has."""
    step: int = evidence.once("started", lambda: _started(evidence))
    return step


def _started(evidence: Evidence) -> int:
    firsts = (row.first_step for rank in evidence.ranks for row, _ in evidence.run.ranks[rank].visible()[:1])
    return max(evidence.start, *firsts) if evidence.ranks else evidence.start


def merged(evidence: Evidence, series: str, start: int, stop: int) -> dict[str, Array]:
    """`count`, `nonfinite_count`, `min`, `max` and `sum` of all ranks at each of the steps [start, stop): (n,) each."""
    names = ("count", "nonfinite_count", "min", "max", "sum")
    if not evidence.has_series(series) or start >= stop:
        return {name: np.zeros(max(0, stop - start)) for name in names}
    row = np.array([evidence.run.names().series[series]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), 0, start, stop, names, row)
    return {name: np.asarray(block.columns[name][0], np.float64) for name in names}


def steps_with(evidence: Evidence, series: str, start: int, stop: int) -> list[int]:
    """Steps of [start, stop) at which any rank has a value, ascending."""
    return (start + np.flatnonzero(merged(evidence, series, start, stop)["count"] > 0)).tolist()


def newest(evidence: Evidence, series: str, start: int, stop: int) -> int | None:
    """The last step of [start, stop) at which any rank has a value."""
    low, span = max(start, stop - FAR), WINDOW // 4
    while stop > low:
        first = max(low, stop - span)
        steps = steps_with(evidence, series, first, stop)
        if steps:
            return steps[-1]
        stop, span = first, 4 * span
    return None


def at(evidence: Evidence, series: str, step: int, ranks: Iterable[int]) -> dict[int, float]:
    """Rank -> its value, of those that have a finite one.

    What a process has said of a step that is over does not change, and a few steps of a hundred are asked for at each
    evaluation: it is read once (256 ranks: 30 ms).
    """
    every = list(ranks)
    processes = tuple(_process_at(evidence, rank, step) for rank in every)
    cache, key = evidence.run.reader.cache, (evidence.run.id, "series_at", series, step, evidence.start, processes)
    stored: dict[int, float] | None = cache.get(key)
    if stored is not None:
        return dict(stored)
    values = {}
    for rank in every:
        deadline.check()
        value = float(evidence.series(series, step, step + 1, rank=rank)[0])
        if np.isfinite(value):
            values[rank] = value
    if step < evidence.whole_stop:
        cache.put(key, dict(values), 200 * len(every) + 400)
    return values


def _process_at(evidence: Evidence, rank: int, step: int) -> tuple[int, int, bool]:
    """The rank, which process its record of the step is of, and whether that has come so far: a spool comes later."""
    rows = evidence.run.ranks[rank].visible() if rank in evidence.run.ranks else []
    row = next((row for row, _ in rows if row.first_step <= step), None)
    return (rank, 0, False) if row is None else (rank, row.id, row.last_step is not None and row.last_step >= step)


def by_value(values: Mapping[int, float], ranks: Iterable[int]) -> list[Ranks]:
    """Ranks by what they have, the largest group first."""
    groups: dict[float, list[int]] = {}
    for rank in ranks:
        if rank in values:
            groups.setdefault(values[rank], []).append(rank)
    return sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group))


def since(evidence: Evidence, series: str, step: int, is_wrong: Callable[[int], bool]) -> tuple[int, int | None]:
    """The first step that is wrong and the last before that is right (None: none is known), by halving: what is wrong
    at `step` has stayed so."""
    right, wrong, known = started(evidence) - 1, step, None
    while wrong - right > 1:
        deadline.check()
        middle = (right + wrong) // 2
        found = newest(evidence, series, right + 1, middle + 1)
        if found is None:
            right = middle
        elif is_wrong(found):
            wrong = found
        else:
            right, known = middle, found
    return wrong, known


def when_text(first: int, right: int | None) -> str:
    """A sentence on how well the first step is known."""
    if right is None:
        return f"Step {first} is the first at which it was compared: it may have begun before."
    if right == first - 1:
        return f"At step {right} it was not so."
    return (
        f"At step {right} it was not so, and at no step between was it compared: it began in one of the steps "
        f"{right + 1} to {first}. With replica_every=1 the very step is known."
    )
