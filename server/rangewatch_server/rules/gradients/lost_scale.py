"""A loss scale that is made smaller by something else than skipped steps: at once, so that every gradient is 0 from
then on, for float16 holds none of what is multiplied by it; or by and by, and no step was skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss_scale.causes import device_of, scale
from rangewatch_server.rules.loss_scale.remedies import bf16, scaler
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding

SERIES = "loss_scale"

FELL, LOW = 2.0**-6, 1.0
"""Part of the scale of the step before to which it fell at once, and what it then is below: a scaler halves it."""

LASTING = 16
"""Steps from there on in which every gradient is 0."""

STEPS = 4_096
"""First steps of a run that are read one by one."""

PLACES = 4
"""Columns of a long run in which single steps are read: the first that fell so far."""


def lost_scale(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding: of the first such step."""
    if not evidence.is_loss_scaled or not evidence.has_series(SERIES):
        return
    if (lowered := _lowered(evidence)) is not None:
        yield _lowered_finding(evidence, *lowered)
        return
    for step, before, now in _falls(evidence):
        if _are_zero(evidence, step):
            yield _finding(evidence, step, before, now)
            return


FALLS, LOWERED, SKIPPED = 8, 2.0**-8, "skipped_step"
"""Steps in a row at which it falls though none is skipped, by so much in all."""


def _lowered(evidence: Evidence) -> tuple[int, int, float, float] | None:
    """The first of such steps and the last, with the scale before it and at the last; of the first steps of the run."""
    if not evidence.has_series(SKIPPED):
        return None
    start, stop = evidence.start, min(evidence.whole_stop, evidence.start + STEPS)
    values, skipped = (evidence.series(name, start, stop) for name in (SERIES, SKIPPED))
    # A skip is of the step before, and may be reported with the step of the fall.
    is_taken = (skipped[:-1] == 0) & (skipped[1:] == 0)
    fell = np.flatnonzero((values[1:] > 0) & (values[1:] < values[:-1]) & is_taken) + 1
    for run in np.split(fell, np.flatnonzero(np.diff(fell) > 1) + 1):
        if len(run) < FALLS:
            continue
        first, last = int(run[0]), int(run[-1])
        if values[last] <= LOWERED * values[first - 1]:
            return start + first, start + last, float(values[first - 1]), float(values[last])
    return None


def _lowered_finding(evidence: Evidence, step: int, last: int, before: float, now: float) -> Finding:
    rank = only_rank(evidence)
    because = f"the loss scale fell in {last + 1 - step} steps in a row, none of which was skipped"
    return Finding(
        rank=rank, step=step, subject="lowered scale",
        summary=f"{place(step, rank)}: the loss scale falls from {scale(before)} to {scale(now)} by step {last}, "
        "though no step is skipped: something else than the scaler makes it smaller.",
        evidence=(
            f"A GradScaler lowers its scale after a step that held Inf or NaN alone, and {because}.",
            "Cause (shown): the loss scale, which code sets, as by update() with a value or by a schedule of its own. "
            "Far below 1, in float16, gradients lose bits and become 0 at last.",
        ),
        remedy=(
            scaler(
                "Leave the scale to the scaler: call update() without a value.", device_of(evidence),
                min(before, 2.0**16), 2_000, because,
            ),
            bf16(device_of(evidence), "bfloat16 has the range of float32"),
        ),
        facts={"since_step": step, "seen_step": last, "scale": now, "before": before, "cause_class": "loss_scale"},
    )  # fmt: skip


def _falls(evidence: Evidence) -> Iterator[tuple[int, float, float]]:
    """Steps, with the scale of the step before and of the step."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    size, first = FANOUT**level, start // FANOUT**level
    columns = evidence.largest(SERIES, start, stop, level)
    # A column holds the largest: where it fell within one, the next has it.
    found = np.flatnonzero((columns[1:] > 0) & (columns[1:] <= FELL * columns[:-1]) & (columns[1:] < LOW)) + 1
    for at in found[:PLACES].tolist():
        low = max(start, (first + at - 1) * size)
        high = min(stop, (first + at + 1) * size)
        if high - low > 2 * SCAN_COLUMNS:
            continue
        values = evidence.largest(SERIES, low, high)
        fell = np.flatnonzero((values[1:] > 0) & (values[1:] <= FELL * values[:-1]) & (values[1:] < LOW)) + 1
        yield from ((low + place, float(values[place - 1]), float(values[place])) for place in fell.tolist())


def _are_zero(evidence: Evidence, step: int) -> bool:
    """Whether every gradient is, and was not in the step before."""
    gradients, stop = tensors_of(evidence, "grad"), step + LASTING
    if not len(gradients) or stop > evidence.whole_stop:
        return False
    wanted = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step - 1, stop, wanted, gradients)
    calls, amax, *bad = (np.asarray(block.columns[each], np.float64) for each in wanted)
    is_zero = not amax[:, 1:].any() and not any(each[:, 1:].any() for each in bad)
    return bool(is_zero and amax[:, 0].any() and calls[:, 1:].any())


def _finding(evidence: Evidence, step: int, before: float, now: float) -> Finding:
    rank, device = only_rank(evidence), device_of(evidence)
    because = f"the loss scale was {scale(before)} in the step before, and is {scale(now)}"
    return Finding(
        rank=rank, step=step, subject="lost scale",
        summary=f"{place(step, rank)}: every gradient is exactly 0 from here on: the loss scale fell from "
        f"{scale(before)} to {scale(now)} at once.",
        evidence=(
            f"In {LASTING} steps in a row no gradient had an element other than 0; in step {step - 1} they had.",
            "Cause (shown): the loss scale. In float16 what is multiplied by it is below the smallest number that "
            "there is (6e-08) and becomes 0. That is no Inf: no step is skipped, and it takes thousands of steps until "
            "the scale has grown.",
        ),
        remedy=(
            scaler(
                'Look at what set the scale, such as a state that was loaded (its "scale"), or update() with a value; '
                "and begin with a new scaler.",
                device, min(before, 2.0**16), 2_000, because,
            ),
            bf16(device, "bfloat16 has the range of float32"),
        ),
        facts={"since_step": step, "scale": now, "before": before, "cause_class": "loss_scale"},
    )  # fmt: skip
