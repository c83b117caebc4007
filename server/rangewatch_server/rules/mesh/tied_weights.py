"""A weight that two stages of a pipeline share, of which each has come to have its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rangewatch.wire.events import TiedWeight
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines.mesh import Ranks
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import STAGES
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

SERIES = "tied_checksum"

MOST_READ = 64
"""Ranks whose weights are read at each evaluation, in pairs: a gradient that is not added up parts all pairs."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    known = mesh_of(evidence)
    axes = values.axes_of(known, STAGES)
    if not axes or not evidence.has_series(SERIES):
        return
    start = values.started(evidence)
    last = values.newest(evidence, SERIES, start, evidence.whole_stop)
    if last is None:
        return
    said = {event.rank: details for event, details in evidence.details(TiedWeight)}
    groups = [
        pair
        for group in values.groups_but(known, axes[:1], evidence.ranks)
        if len(pair := _pair(known.places, group, axes[0], said)) == 2
    ]
    groups = values.cut(groups, MOST_READ)
    held = values.at(evidence, SERIES, last, [rank for pair in groups for rank in pair])
    odd = [pair for pair in groups if len(values.by_value(held, pair)) > 1]
    if odd:
        found = _since(evidence, odd[0], last, is_marked=all(said[rank].is_marked for rank in odd[0]))
        if found is not None:
            yield _finding(evidence, odd, axes[0], [said[rank].name for rank in odd[0]], *found)


def _pair(places: Mapping[int, Mapping[str, int]], group: Ranks, axis: str, said: Mapping[int, TiedWeight]) -> Ranks:
    """The first and the last stage of a pipeline, of those that hold such a weight."""
    holders = sorted((rank for rank in group if rank in said), key=lambda rank: places[rank].get(axis, 0))
    marked = [rank for rank in holders if said[rank].is_marked]
    ends = marked if len(marked) > 1 else holders
    return (ends[0], ends[-1]) if len(ends) > 1 else ()


def _since(evidence: Evidence, pair: Ranks, last: int, *, is_marked: bool) -> tuple[int, int | None] | None:
    """None where nothing says that they are tied: they are marked, or were the same bits once."""

    def differ(step: int) -> bool:
        return len(values.by_value(values.at(evidence, SERIES, step, pair), pair)) > 1

    first, right = values.since(evidence, SERIES, last, differ)
    return (first, right) if right is not None or is_marked else None


def _finding(
    evidence: Evidence, odd: Sequence[Ranks], axis: str, names: Sequence[str], first: int, right: int | None
) -> Finding:
    more = f" So do {len(odd) - 1} more pairs." if len(odd) > 1 else ""
    began = "they began as different ones" if right is None else "they were the same bits before"
    return Finding(
        rank=None, step=first, tensor=names[0], kind="grad", subject="tied",
        summary=f"Step {first}, along {axis}: {ranks_text(odd[0])} hold different weights {names[0]} and {names[1]}, "
        f"which are tied: {began}.{more}",
        evidence=(
            "Compared were checksums of the two, right before the update.",
            values.when_text(first, right),
        ),
        remedy=(
            Remedy(
                "Add up the two gradients of the tied weight over the stages that hold it before each update, and "
                "start both from the same values; both optimizers must then have the same state and settings.",
                "group = torch.distributed.group.WORLD  # here that of the two stages that hold the weight\n"
                "weight = next(model.parameters())      # the embedding here, and the head there\n"
                "first = torch.distributed.get_global_rank(group, 0)\n"
                "torch.distributed.broadcast(weight.data, src=first, group=group)\n"
                "if weight.grad is not None:            # at each step, before the update\n"
                "    torch.distributed.all_reduce(weight.grad, group=group)",
                "the weights' own bits were compared",
            ),
        ),
        facts={"axes": (axis,), "ranks": sorted(rank for pair in odd for rank in pair), "names": list(names),
               "last_right_step": right},
    )  # fmt: skip


RULE = Rule(
    name="tied_weights_differ",
    title="Tied weights differ",
    severity="critical",
    explanation="A model whose output layer is its embedding has that weight on the first and on the last stage of a "
    "pipeline. Each gets a part of its gradient: unless the parts are added up, and both start alike, the two come to "
    "be different weights, and which one a checkpoint has depends on who saves it. Compared are weights that are "
    "marked as shared, and those that were the same bits once.",
    check=check,
)
