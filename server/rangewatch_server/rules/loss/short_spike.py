"""Worth knowing: a loss, or the largest gradient, was far above all before it for a step or two, and finite.

Too short for a jump (`loss_spike`) or an explosion (`exploding_gradient`). A hard batch is usual: this was no such one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, level_for
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss.loss_spike import PLACES
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.loss.spike.cause import explained
from rangewatch_server.rules.loss.spike.jumps import HISTORY, settled
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, tensors_of
from rangewatch_server.rules.rule import Finding, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import MAD

LONGEST = 2
"""High values in a row, of a loss; three are a jump."""

GRADIENT_LONGEST, GRADIENT_BITS = 4, 5.0
"""The same of gradients, and how far above all before they must be: 32 times, as for those that stay so."""

LOOK_BACK = 2 * HISTORY
"""Values before it whose highest counts, but for the fall that they begin with."""

ABOVE_HIGHEST = 3.0
"""How many times as far above the usual as the highest before."""


class Spike(msgspec.Struct, frozen=True):
    """At `step`: from `usual`, at most `highest` before, to `level`; low again at `back`."""

    step: int
    usual: float
    highest: float
    level: float
    back: int


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of the loss and, where it has none, one of the gradients: the first."""
    name = loss_name(evidence)
    if name is not None:
        for start, stop in _places(evidence, name):
            steps, values = _losses(evidence, name, start, stop)
            for spike in spikes(steps, values, start, limits["deviations"], LONGEST):
                if spike.level - spike.usual >= limits["least_rise"] * abs(spike.usual):
                    yield _finding(evidence, name, spike)
                    return
    gradient = _gradient(evidence)
    if gradient is not None:
        yield _gradient_finding(evidence, gradient)


def spikes(steps: Array, values: Array, since: int, deviations: float, longest: int) -> Iterator[Spike]:
    """Those of (n,) finite values at (n,) steps that began at `since` or later and are over, ascending."""
    for at in range(HISTORY, len(values)):
        if steps[at] < since or values[at] <= values[at - 1]:
            continue
        history = values[max(0, at - LOOK_BACK) : at]
        if values[at] <= float(history[-HISTORY:].max()):
            continue
        usual = float(np.median(history[-HISTORY:]))
        scatter = MAD * float(np.median(np.abs(history[-HISTORY:] - usual)))
        highest = float(settled(history, usual + deviations * scatter).max())
        if values[at] <= highest:
            continue
        bar = usual + max(deviations * scatter, ABOVE_HIGHEST * (highest - usual))
        low = np.flatnonzero(values[at : at + longest + 2] <= usual + (values[at] - usual) / 2)
        has_scale = scatter > 0 or highest > usual or usual != 0
        if has_scale and values[at] > bar and len(low) and low[0] <= longest:
            yield Spike(int(steps[at]), usual, highest, float(values[at]), int(steps[at + low[0]]))


def _losses(evidence: Evidence, name: str, start: int, stop: int) -> tuple[Array, Array]:
    low = max(evidence.start, start - WINDOW)
    values = evidence.series(name, low, stop)
    at = np.flatnonzero(np.isfinite(values))
    return low + at, values[at]


def _places(evidence: Evidence, name: str) -> Iterator[tuple[int, int]]:
    """Steps [start, stop) in which it may be: the columns of the whole run that rise most, then the last ones."""
    start, stop = evidence.start, evidence.whole_stop
    if stop - start > WINDOW:
        level = max(1, level_for(stop - start, WINDOW))
        row, size = np.array([evidence.run.names().series[name]]), FANOUT**level
        block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("count", "max"), row)
        largest = np.where(block.columns["count"][0] > 0, block.columns["max"][0], -np.inf)
        if len(largest) > 1:
            with np.errstate(invalid="ignore"):
                rise = np.nan_to_num(largest[1:] - np.maximum.accumulate(largest)[:-1], neginf=0.0, posinf=0.0)
            for column in sorted((1 + np.argsort(-rise, kind="stable")[:PLACES]).tolist()):
                at = (block.first + column) * size
                if rise[column - 1] > 0:
                    yield max(start, at, at + size - 4 * WINDOW), min(stop, at + size + LONGEST + 1)
    yield max(start, stop - WINDOW), stop


def _gradient(evidence: Evidence) -> Spike | None:
    """Of the largest gradient of the last steps, without the loss scale, in bits."""
    tensors = tensors_of(evidence, "grad")
    low, stop = max(evidence.start, evidence.whole_stop - 2 * WINDOW), evidence.whole_stop
    if not len(tensors) or stop - low <= HISTORY:
        return None
    names = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, tensors)
    amax = np.asarray(block.columns["amax"], np.float64).max(axis=0)
    is_bad = (np.asarray(block.columns["nan_count"]) + np.asarray(block.columns["inf_count"])).any(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where((amax > 0) & ~is_bad, np.log2(amax), np.nan)
        if evidence.is_loss_scaled:
            bits = bits - np.log2(evidence.series("loss_scale", low, stop))
    there = np.flatnonzero(np.isfinite(bits))
    found = spikes(low + there, bits[there], max(evidence.start, stop - WINDOW), 8.0, GRADIENT_LONGEST)
    return next((each for each in found if each.level - each.highest >= GRADIENT_BITS), None)


def _finding(evidence: Evidence, name: str, spike: Spike) -> Finding:
    cause = explained(evidence, name, spike.step, spike.usual, spike.back)
    return Finding(
        rank=cause.rank, step=spike.step, subject="loss", tensor=cause.tensor, kind=cause.kind,
        summary=f"{place(spike.step, cause.rank)}: {loss_called(name)} was {spike.level:.4g} for a moment, usually "
        f"{spike.usual:.4g}; it was low again at step {spike.back}.",
        evidence=(
            f"Of the steps before, but for a fall that they begin with, the highest was {spike.highest:.4g}.",
            *cause.sentences,
        ),
        remedy=cause.remedies,
        facts={
            "loss": spike.level, "before": spike.usual, "highest_before": spike.highest, "back_step": spike.back,
            **cause.facts(),
        },
    )  # fmt: skip


def _gradient_finding(evidence: Evidence, spike: Spike) -> Finding:
    usual, level = 2.0**spike.usual, 2.0**spike.level
    cause = explained(evidence, None, spike.step)
    return Finding(
        rank=cause.rank, step=spike.step, subject="gradient", tensor=cause.tensor, kind=cause.kind,
        summary=f"{place(spike.step, cause.rank)}: the largest gradient was {level:.3g} for a moment, usually "
        f"{usual:.3g}; it was low again at step {spike.back}.",
        evidence=(f"Of the steps before the highest was {2.0**spike.highest:.3g}.", *cause.sentences),
        remedy=cause.remedies,
        facts={"amax": level, "before": usual, "back_step": spike.back, **cause.facts()},
    )  # fmt: skip


RULE = Rule(
    name="short_spike",
    title="Loss or gradients spiked for a moment",
    severity="info",
    explanation="For a step or two the loss was far above all before it since it had come down, or for up to four "
    "steps the largest gradient was 32 times the highest before, and both were finite. One batch that is bad does "
    "that. What stays high is reported by other rules.",
    check=check,
    thresholds=(
        Threshold("deviations", 8.0, "standard deviations", "How far above its usual value the loss must be."),
        Threshold("least_rise", 0.5, "of its usual value", "And by how much of it."),
    ),
)  # fmt: skip
