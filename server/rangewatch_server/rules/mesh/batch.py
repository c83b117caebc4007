"""Data-parallel ranks that train on the same rows, and ranks of one model that get different ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines.mesh import Mesh, Ranks
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import DATA, SEQUENCE, STAGES, TENSOR
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

ROWS, TOKENS, INPUTS = "rows_checksum", "token_checksum", "input_checksum"
WHAT = {
    ROWS: "the rows that the loop names (rangewatch.batch)", TOKENS: "the whole numbers that the model is given",
    INPUTS: "what the model is given",
}  # fmt: skip

LASTING = 3
"""Readings in a row in which ranks must share a batch: a sampler pads its last one with rows of others."""


class Shared(msgspec.Struct, frozen=True):
    """`groups` of ranks that are wrong along `axes`, in which `first` was the first step, and `right` the last that was
    right before. `is_same`: they have the same and should not."""

    series: str
    axes: tuple[str, ...]
    groups: tuple[Ranks, ...]
    first: int
    right: int | None
    is_same: bool


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one of each kind."""
    known = mesh_of(evidence)
    if len(evidence.ranks) < 2 or not known.places:
        return
    said: set[tuple[bool, bool]] = set()
    for series in (ROWS, TOKENS, INPUTS):
        steps = _newest_steps(evidence, series)
        for found in _wrong(evidence, known, series, steps):
            kind = found.is_same, values.role(found.axes[0]) == SEQUENCE
            if kind not in said:
                said.add(kind)
                yield _finding(evidence, known, found)


def _newest_steps(evidence: Evidence, series: str) -> list[int]:
    """Those with a value, the last ones."""
    if not evidence.has_series(series):
        return []
    stop = evidence.whole_stop
    last = values.newest(evidence, series, values.started(evidence), stop)
    if last is None:
        return []
    low = max(values.started(evidence), last + 1 - WINDOW)
    return values.steps_with(evidence, series, low, last + 1)[-LASTING:]


def _wrong(evidence: Evidence, known: Mesh, series: str, steps: Sequence[int]) -> Iterator[Shared]:
    if not steps:
        return
    stages = values.axes_of(known, STAGES)
    # Later stages of a pipeline are given what the stage before has made.
    is_first = {rank: all(known.coordinates(rank).get(axis, 0) == 0 for axis in stages) for rank in evidence.ranks}
    ranks = [rank for rank in evidence.ranks if is_first[rank] or series == ROWS]
    for role in (DATA, SEQUENCE):
        axes = values.axes_of(known, role)
        if axes and len(steps) == LASTING and not (series == ROWS and role == SEQUENCE):
            yield from _alike(evidence, known, series, steps, values.groups_but(known, axes, ranks), axes)
    roles = (TENSOR, SEQUENCE, STAGES) if series == ROWS else (TENSOR,)
    for axis in values.axes_of(known, *roles):
        yield from _unlike(evidence, series, steps[-1], values.groups_but(known, (axis,), ranks), axis)


def _alike(
    evidence: Evidence, known: Mesh, series: str, steps: Sequence[int], groups: Sequence[Ranks], axes: Sequence[str]
) -> Iterator[Shared]:
    shown = values.cut(groups)
    ranks = [rank for group in shown for rank in group]
    newest = values.at(evidence, series, steps[-1], ranks)
    alike = [rank for group in shown for same in values.by_value(newest, group) if len(same) > 1 for rank in same]
    read = [values.at(evidence, series, step, alike) for step in steps] if alike else []
    shared = tuple(each for group in shown for each in _sharing(read, group)) if read else ()
    if not shared:
        return
    pair = shared[0][:2]

    def is_wrong(step: int) -> bool:
        found = values.at(evidence, series, step, pair)
        return len(found) == 2 and len(set(found.values())) == 1

    first, right = values.since(evidence, series, steps[0], is_wrong)
    places = [known.coordinates(rank) for rank in shared[0]]
    differing = tuple(axis for axis in axes if len({place.get(axis) for place in places}) > 1)
    yield Shared(series, differing or tuple(axes), shared, first, right, is_same=True)


def _sharing(read: Sequence[dict[int, float]], group: Ranks) -> list[Ranks]:
    """Ranks that have the same at each reading, and not one that never changes."""
    together: dict[tuple[float, ...], list[int]] = {}
    for rank in group:
        held = tuple(each[rank] for each in read if rank in each)
        if len(held) == len(read) and len(set(held)) > 1:
            together.setdefault(held, []).append(rank)
    return [tuple(each) for each in together.values() if len(each) > 1]


def _unlike(evidence: Evidence, series: str, step: int, groups: Sequence[Ranks], axis: str) -> Iterator[Shared]:
    shown = values.cut(groups)
    held = values.at(evidence, series, step, [rank for group in shown for rank in group])
    odd = tuple(group for group in shown if len(values.by_value(held, group)) > 1)
    if not odd:
        return

    def is_wrong(at: int) -> bool:
        return len(values.by_value(values.at(evidence, series, at, odd[0]), odd[0])) > 1

    first, right = values.since(evidence, series, step, is_wrong)
    yield Shared(series, (axis,), odd, first, right, is_same=False)


def _finding(evidence: Evidence, known: Mesh, found: Shared) -> Finding:
    along = " and ".join(found.axes)
    ranks = sorted(rank for group in found.groups for rank in group)
    group = found.groups[0]
    who = f"{ranks_text(group)} {'both ' if len(group) == 2 else ''}"
    is_part = values.role(found.axes[0]) == SEQUENCE
    # Floating inputs that were never alike may be parts of a sequence, which a script has cut up itself.
    is_unknown = not found.is_same and found.series == INPUTS and found.right is None
    if found.is_same:
        what = "the same part of the sequence" if is_part else "the same rows"
        summary = f"Step {found.first}, along {along}: {who}train on {what}, and on the same ones in later steps."
    else:
        summary = (
            f"Step {found.first}, along {along}: {ranks_text(group)} get different batches, though they have one model."
        )
    others = found.groups[1:]
    more = f" So do {ranks_text(others[0])}{' and others' if len(others) > 1 else ''}." if others else ""
    return Finding(
        severity="info" if is_unknown else "warning" if found.is_same else "critical",
        rank=None, step=found.first,
        subject=f"{'same' if found.is_same else 'different'} along {along}",
        summary=summary + more,
        evidence=(
            f"Compared was {WHAT[found.series]}, by a checksum in each rank's first forward of the step.",
            values.when_text(found.first, found.right),
            *(
                ("They were never the same: a script that gives each rank a part of the sequence itself looks alike. "
                 "What would decide: name the rows, by rangewatch.batch(ids=...).",) if is_unknown else ()
            ),
        ),
        remedy=tuple(_remedies(known, found)),
        facts={"axes": found.axes, "ranks": ranks, "groups": [list(each) for each in found.groups],
               "last_right_step": found.right, "cause_class": "data"},
    )  # fmt: skip


PLACE = (
    "group = torch.distributed.group.WORLD  # here that of the ranks along {axis}: mesh.get_group(...)\n"
    "index, count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)\n"
)
SAMPLER = (
    "sampler = torch.utils.data.DistributedSampler(  # of your dataset in place of the range\n"
    "    range(1024), num_replicas=count, rank=index)\n"
    "sampler.set_epoch(0)  # at the top of each epoch, with its number"
)


def _remedies(known: Mesh, found: Shared) -> Iterator[Remedy]:
    because = "the checksums of what the ranks were given"
    axis = " and ".join(found.axes)
    data = " and ".join(values.axes_of(known, DATA)) or "the data-parallel axis"
    if found.is_same and values.role(found.axes[0]) == SEQUENCE:
        yield Remedy(
            f"Give each rank along {axis} its own part of the sequence, by its place along that axis.",
            PLACE.format(axis=axis) + "part = torch.arange(1024).chunk(count)[index]  # of the sequence",
            because,
        )
    elif found.is_same:
        yield Remedy(
            "Give the sampler as many readers as there are data-parallel ranks, and this rank's place among them; an "
            "iterable dataset has to leave out the other readers' rows itself.",
            PLACE.format(axis=data) + SAMPLER,
            because,
        )
    else:
        yield Remedy(
            "Seed and shard the data by the place along the data-parallel axes, not by the global rank: ranks along "
            f"{axis} hold parts of one model and must see the same rows.",
            PLACE.format(axis=data) + SAMPLER,
            because,
        )


RULE = Rule(
    name="batch_along_mesh",
    title="Batches do not fit the mesh",
    severity="warning",
    explanation="Data-parallel ranks are there to train on different rows, and ranks that hold parts of one model must "
    "see the same ones. A sampler that does not know its rank makes several train on the same rows, which looks like a "
    "smaller batch; one that goes by the global rank gives the ranks of one model different ones, whose gradients "
    "belong to nothing. The loss looks right in either case. Compared are checksums at three steps in `replica_every`.",
    check=check,
    explains=("dropout_mismatch", "replica_mismatch", "gradient_norm_wrong", "tied_weights_differ"),
)
