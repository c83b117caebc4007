"""Early warning: a weight that does not change though it gets gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import SQUARES, Array, History, history, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

LASTING = 3
"""Groups of 64 steps in a row with a reading of the weight."""

NEGLIGIBLE = 1e-5
"""Of the median weight's gradient. One that is smaller is rounding: that of an attention's key bias is 0 by its
formula, which softmax takes away, and was 1e-7 of the median in healthy trainings in float32."""

ROUNDING = 4e-15
"""Relative: sums of equal squares over several ranks or readings differ by it."""


class Unchanged(msgspec.Struct, frozen=True):
    """Between the steps `since` and `until`, in `readings` groups of steps; `amax` of its gradient then."""

    tensor: int
    since: int
    until: int
    readings: int
    amax: float


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first of them, and how many more there are."""
    weights, gradients = tensors_of(evidence, "weight"), tensors_of(evidence, "grad")
    if not len(weights) or not len(gradients):
        return
    entries = evidence.tensors.entries
    by_name = {entries[int(each)].fqn: at for at, each in enumerate(gradients)}
    values, pushed = history(evidence, weights, SQUARES), history(evidence, gradients)
    found = []
    for at, tensor in enumerate(weights):
        place = by_name.get(entries[int(tensor)].fqn)
        if place is not None and (each := _unchanged(values, at, pushed, place, int(tensor))) is not None:
            found.append(each)
    usual = np.median(pushed.columns["amax"].max(axis=1, initial=0.0))
    found = [each for each in found if each.amax > NEGLIGIBLE * usual]
    if found:
        yield _finding(evidence, found, len(weights))


def _unchanged(values: History, at: int, pushed: History, place: int, tensor: int) -> Unchanged | None:
    """None where it changed, was read too seldom, is all zero, or got no gradient all that time."""
    read = np.flatnonzero(values.columns["full_numel"][at] > 0)
    amax, mean_sq = values.columns["amax"][at][read], values.share("sum_sq")[at][read]
    same = (amax[1:] == amax[:-1]) & (np.abs(np.diff(mean_sq)) <= ROUNDING * mean_sq[1:]) & (amax[1:] > 0)
    changes = np.flatnonzero(~same)
    first = int(changes[-1]) + 1 if len(changes) else 0
    if len(read) - first < LASTING:
        return None
    span = slice(int(read[first]), int(read[-1]) + 1)
    calls, largest = pushed.columns["call_count"][place][span], pushed.columns["amax"][place][span]
    if not (calls > 0).all() or not (largest > 0).all():
        return None
    since, until = int(values.starts[read[first]]), int(values.ends[read[-1]])
    return Unchanged(tensor, since, until, len(read) - first, float(np.median(largest)))


def _finding(evidence: Evidence, found: list[Unchanged], weights: int) -> Finding:
    first = found[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.until, rank)
    more = [evidence.tensors.entries[each.tensor] for each in found[1:]]
    everything = f"so do all {weights} weights" if len(found) == weights else f"{len(more)} more do: {listed(more)}"
    return Finding(
        rank=rank, step=first.until, tensor=entry.fqn, kind="weight", subject="unchanged",
        summary=f"{where}: the weight {entry.fqn} has not changed since step {first.since}, though it gets gradients.",
        evidence=tuple(_evidence(evidence, first, everything if more else "")),
        remedy=tuple(_remedies(entry.fqn, entry.dtype)),
        facts={"since_step": first.since, "readings": first.readings, "tensors": len(found), "of": weights},
    )  # fmt: skip


def _evidence(evidence: Evidence, first: Unchanged, everything: str) -> Iterator[str]:
    yield (
        f"In {first.readings} readings its largest magnitude was the same to the bit, and the sum of its squares, too; "
        f"its gradient's largest magnitude was {first.amax:.3g} meanwhile."
    )
    lr = _series(evidence, "lr")
    if len(lr):
        yield f"The learning rate that was logged is {lr[-1]:.3g}."
    skipped = _series(evidence, "skipped_step")
    if len(skipped) and skipped.mean() > 0.5:
        yield f"The loss scaler skipped {skipped.mean():.0%} of the last {len(skipped)} steps."
    if everything:
        yield f"{everything[0].upper()}{everything[1:]}."


def _series(evidence: Evidence, name: str) -> Array:
    values = evidence.series(name) if evidence.has_series(name) else np.zeros(0)
    return values[np.isfinite(values)]


def _remedies(fqn: str, dtype: str) -> Iterator[Remedy]:
    because = "it rests on readings of the weight itself"
    yield Remedy(
        "See whether the optimizer has it, and with which learning rate.",
        f"wanted = dict(model.named_parameters())[{fqn!r}]\n"
        "print([group['lr'] for group in optimizer.param_groups if any(each is wanted for each in group['params'])])",
        because,
    )
    if dtype in ("float16", "bfloat16"):
        yield Remedy(
            f"Updates below half a step of {dtype} are rounded away: keep the weights in float32, under autocast.",
            "model.float()  # before the optimizer is made", because,
        )  # fmt: skip


RULE = Rule(
    name="unchanged_weights",
    title="Weights do not change",
    severity="warning",
    explanation="A parameter's gradient is not zero, and yet its values are what they were: the optimizer does not "
    "have it, has a learning rate of 0 for it, or its updates are lost in rounding. Needs the kind weight.",
    check=check,
    thresholds=(),
)
