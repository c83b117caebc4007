"""Gradients so small that their dtype holds them with few bits or as zero: the loss scale is too low, or missing.

That some elements are zero or subnormal says little: behind a ReLU half of them are zero, and behind a softmax most are
tiny and do not matter. So a tensor underflows where most of its non-zero elements are subnormal and its root mean
square, zeros included, is below the smallest normal number as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import BACKWARD, SCAN_COLUMNS, Evidence
from rangewatch_server.rules.gradients.lost_scale import lost_scale
from rangewatch_server.rules.loss.series import is_not_zero
from rangewatch_server.rules.loss_scale import remedies
from rangewatch_server.rules.loss_scale.causes import device_of, scale
from rangewatch_server.rules.phrases import place, the
from rangewatch_server.rules.recent import FEW_RANKS, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

LEVEL = 1
"""Columns of 8 steps: a full set lies in one of them, whatever its step."""

STEPS = 1_024
"""Steps before the last in which full sets are searched for: ten of them where they are 100 steps apart."""

NEWEST = 3
"""Columns with a full set that are judged together: one batch says little."""

NARROW = 1e-30
"""A dtype whose smallest normal number is less has the range of float32: nothing underflows that matters."""

COUNTS = ("full_numel", "zero_count", "subnormal_count", "nan_count", "inf_count")
SQUARES = ("full_numel", "nan_count", "inf_count", "sum_sq")
"""Ranks are kept merged of the counts and not of the squares, which are read from a few, of what may underflow."""


class Underflow(msgspec.Struct, frozen=True):
    """Gradients that have a full set: `tensors` of them, `lost` are those that underflow, the worst first.

    Of the newest full sets, (len(tensors),): `subnormal` share of the non-zero elements, `zero` share of all, `rms`.
    `since`, `step`: steps of the oldest of these full sets and of the newest, to within 8. `before`: the largest of
    the `lost` tensors' subnormal shares in the oldest full set of the last `STEPS` steps.
    """

    tensors: NDArray[np.int64]
    lost: NDArray[np.int64]
    subnormal: NDArray[np.float64]
    zero: NDArray[np.float64]
    rms: NDArray[np.float64]
    since: int
    step: int
    before: float
    before_step: int

    @property
    def rises(self) -> bool:
        """Whether much less of them was subnormal at first."""
        return bool(self.before < self.subnormal[0] / 2) and self.before_step < self.since


def measure(evidence: Evidence, share: float) -> Underflow | None:
    """What underflows in the newest full sets; None where no gradient of a narrow dtype has one."""
    entries = evidence.tensors.entries
    kinds = [KINDS.index(kind) for kind in BACKWARD]
    normal = np.array([limits_of(entry.dtype).smallest_normal for entry in entries])
    rows = np.flatnonzero(np.isin(evidence.tensors.kind_rows, kinds) & (normal > NARROW))
    names = evidence.run.names().fill[RANGES]
    start = max(evidence.start, evidence.whole_stop - STEPS)
    if not len(rows) or start >= evidence.whole_stop or any(name not in names for name in (*COUNTS, *SQUARES)):
        return None
    block = evidence.run.slice(RANGES, evidence.ranks, LEVEL, start, evidence.whole_stop, COUNTS, rows)
    columns = {name: np.asarray(block.columns[name], np.float64) for name in COUNTS}
    full = np.flatnonzero((columns["full_numel"] > 0).any(axis=0))
    if not len(full):
        return None
    subnormal, zero = _shares(columns, full[-NEWEST:])
    oldest, _ = _shares(columns, full[:1])
    rms = np.full(len(rows), np.inf)
    many = np.flatnonzero(subnormal >= share)
    if len(many):
        rms[many] = _rms(evidence, rows[many], block.first + full[-NEWEST:])
    lost = np.flatnonzero((subnormal >= share) & (rms < normal[rows]))
    lost = lost[np.argsort(-subnormal[lost], kind="stable")]
    first, last, start = (int((block.first + at) * FANOUT**LEVEL) for at in (full[-NEWEST:][0], full[-1], full[0]))
    before = float(oldest[lost].max(initial=0.0))
    return Underflow(rows, rows[lost], subnormal[lost], zero[lost], rms[lost], first, last, before, start)


def _shares(
    columns: dict[str, NDArray[np.float64]], at: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    numel, zeros, subnormal, *bad = (columns[name][:, at].sum(axis=1) for name in COUNTS)
    finite = np.maximum(numel - sum(bad), 1.0)
    return subnormal / np.maximum(finite - zeros, 1.0), zeros / np.maximum(numel, 1.0)


def _rms(evidence: Evidence, rows: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """(len(rows),) of the finite elements in the columns `at`, of the `FEW_RANKS` lowest ranks."""
    totals = {name: np.zeros(len(rows)) for name in SQUARES}
    for column in at.tolist():
        start, stop = max(evidence.start, column * FANOUT**LEVEL), (column + 1) * FANOUT**LEVEL
        few = evidence.ranks[:FEW_RANKS]
        block = evidence.run.slice(RANGES, few, LEVEL, start, min(stop, evidence.whole_stop), SQUARES, rows)
        for name in SQUARES:
            totals[name] += block.columns[name].sum(axis=1)
    finite = np.maximum(totals["full_numel"] - totals["nan_count"] - totals["inf_count"], 1.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(totals["sum_sq"] / finite))


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the run's gradients together."""
    if (lost := next(lost_scale(evidence), None)) is not None:
        yield lost
        return
    underflow = measure(evidence, limits["subnormal_share"])
    if underflow is None or len(underflow.lost) < max(1.0, limits["tensor_share"] * len(underflow.tensors)):
        # Where nothing is left, nothing is subnormal.
        flushed = _flushed(evidence)
        if flushed is not None:
            yield flushed
        return
    worst = evidence.tensors.entries[int(underflow.lost[0])]
    missing = "" if evidence.is_loss_scaled else ", and the loss is not scaled"
    yield Finding(
        rank=only_rank(evidence), step=underflow.step, tensor=worst.fqn, kind=worst.kind, subject="run",
        summary=f"{place(underflow.step, only_rank(evidence))}: "
        f"{len(underflow.lost)} of {len(underflow.tensors)} gradients in {worst.dtype} "
        f"underflow, {the(worst)} most: {underflow.subnormal[0]:.0%} of its non-zero elements are subnormal{missing}.",
        evidence=tuple(_evidence(evidence, underflow)),
        remedy=tuple(_remedies(evidence, underflow)),
        facts={
            "tensors": len(underflow.tensors), "underflowing": len(underflow.lost),
            "subnormal_fraction": float(underflow.subnormal[0]), "zero_fraction": float(underflow.zero[0]),
            "rms": float(underflow.rms[0]), "cause_class": "loss_scale",
            "cause_step": underflow.since if underflow.rises else underflow.before_step,
        },
    )  # fmt: skip


FLUSHED, FLUSHED_SHARE = 32, 0.5
"""Steps since the first in which gradients have been 0 in every element, and of how many parameters."""

FLOOR_BITS = 6.0
"""Bits above the smallest number of a dtype below which its gradients are about to be 0."""


def _flushed(evidence: Evidence) -> Finding | None:
    """Gradients that have been exactly 0 since the first step, with what is computed in float16 and no loss scale, or
    one that has always been next to nothing."""
    if evidence.start > (evidence.run.first_step or 0) or (evidence.is_loss_scaled and not _is_small(evidence)):
        return None
    entries, stop = evidence.tensors.entries, evidence.whole_stop
    half = np.array([each.dtype == "float16" for each in entries], bool)
    gradients, grad_outputs = (tensors_of(evidence, kind) for kind in ("grad", "grad_output"))
    is_half = half[tensors_of(evidence, "output", "grad_output", "grad")].any()
    if not is_half or not len(gradients) or stop - evidence.start < FLUSHED:
        return None
    level = level_for(stop - evidence.start, SCAN_COLUMNS)
    both = np.sort(np.r_[gradients, grad_outputs])
    block = evidence.run.slice(RANGES, evidence.ranks, level, evidence.start, stop, BASIC, both)
    calls, amax, *bad = (np.asarray(block.columns[name], np.float64) for name in BASIC)
    total = calls.sum(axis=1)
    is_zero = (total > 0) & ~amax.any(axis=1) & ~np.stack(bad).any(axis=(0, 2))
    is_grad, seen = np.isin(both, gradients), total > 0
    dead = both[is_zero & is_grad]
    if len(dead) < max(1.0, FLUSHED_SHARE * (seen & is_grad).sum()) or not is_not_zero(evidence):
        return None
    is_every = len(dead) == (seen & is_grad).sum()
    floor = float(np.finfo(np.float16).smallest_subnormal)
    near = half[both] & ~is_grad & seen & (amax.max(axis=1) <= floor * 2.0**FLOOR_BITS)
    if not near.any():
        return None  # float16 holds them: they are 0 for another reason
    return _flushed_finding(evidence, dead, int((seen & is_grad).sum()), float(amax[near].max()), is_every=is_every)


SMALL = 2.0
"""Loss scale below which it lifts nothing."""


def _is_small(evidence: Evidence) -> bool:
    values = evidence.series("loss_scale", evidence.start, evidence.whole_stop)
    values = values[np.isfinite(values)]
    return bool(len(values)) and bool(values.max() < SMALL)


BASIC = ("call_count", "amax", "nan_count", "inf_count")


def _flushed_finding(
    evidence: Evidence, dead: NDArray[np.int64], among: int, most: float, *, is_every: bool
) -> Finding:
    entries, step = evidence.tensors.entries, evidence.run.first_step or 0
    first = entries[int(dead[np.argmin(evidence.tensors.position[dead])])]
    which = "every gradient" if is_every else f"{len(dead)} of {among} gradients"
    verb, is_scaled = "is" if is_every else "are", evidence.is_loss_scaled
    device = device_of(evidence)
    floor = float(np.finfo(np.float16).smallest_subnormal)
    because = (
        f"gradients of outputs in float16 were {most:.2g} at most; the smallest number that it holds is {floor:.2g}"
    )
    return Finding(
        rank=only_rank(evidence), step=step, tensor=first.fqn, kind=first.kind, subject="flushed",
        summary=f"{place(step, only_rank(evidence))}: {which} {verb} exactly 0 in every element since the run began: "
        f"in float16 they are flushed to zero, and the loss {'scale lifts nothing' if is_scaled else 'is not scaled'}.",
        evidence=(
            f"In all steps up to {evidence.whole_stop - 1} {because.split(';')[0]}, where {floor:.2g} is the smallest "
            "number that float16 holds; the loss is not 0.",
            _scale(evidence),
            f"Cause (likely): the loss scale is {'far too low' if is_scaled else 'missing'}. Against that: a graph "
            "that is cut, or a factor of 0, gives zeros as well. What would decide: the same steps in float32 or "
            "bfloat16.",
        ),
        remedy=(
            remedies.scaler(
                "Begin with a higher loss scale, and let it grow (growth_interval)."
                if is_scaled else
                "Scale the loss by a GradScaler, and give it to Rangewatch: attach(model, optimizer, scaler=scaler).",
                device, 2**16, 2_000, because,
            ),
            remedies.bf16(device, "bfloat16 has the range of float32"),
        ),
        facts={"zero": len(dead), "parameters": among, "amax": most, "cause_class": "loss_scale"},
    )  # fmt: skip


def _evidence(evidence: Evidence, underflow: Underflow) -> Iterator[str]:
    entries = evidence.tensors.entries
    normal = limits_of(entries[int(underflow.lost[0])].dtype).smallest_normal
    steps = f"{underflow.since} to {underflow.step}"
    yield f"Measured at steps {steps}; a subnormal number has lost bits, below {normal:.2g}."
    for row, subnormal, zero, rms in zip(
        underflow.lost[:4], underflow.subnormal, underflow.zero, underflow.rms, strict=False
    ):
        name = the(entries[int(row)])
        yield (
            f"{name[:1].upper()}{name[1:]}: {subnormal:.0%} of the non-zero elements subnormal, {zero:.0%} zero, "
            f"root mean square {rms:.2g}."
        )
    if underflow.rises:
        yield f"It rises: at step {underflow.before_step} at most {underflow.before:.0%} of them were subnormal."
    yield _scale(evidence)
    which = "too low" if evidence.is_loss_scaled else "missing"
    yield (
        f"Cause (likely): the loss scale is {which}. What would decide: the same steps in float32 or bfloat16, which "
        "hold such gradients: if the loss falls no faster there, what is lost was not needed."
    )


def _scale(evidence: Evidence) -> str:
    history = evidence.loss_scales
    last = history.last(history.scalers[0]) if history.scalers else None
    if last is not None:
        return f"The loss scale is {scale(last)}."
    return "A loss scaler is in use." if evidence.is_loss_scaled else "No loss scaler is known to Rangewatch."


def _remedies(evidence: Evidence, underflow: Underflow) -> Iterator[Remedy]:
    device = device_of(evidence)
    normal = limits_of(evidence.tensors.entries[int(underflow.lost[0])].dtype).smallest_normal
    because = f"root mean square {underflow.rms[0]:.2g}, smallest normal number {normal:.2g}"
    if not evidence.is_loss_scaled:
        text = "Scale the loss, and give Rangewatch the scaler: attach(model, optimizer, scaler=scaler)."
        yield remedies.scaler(text, device, 2**16, 2_000, because)
    else:
        text = "Let the loss scale grow: a higher first scale, and a growth interval that the run reaches."
        yield remedies.scaler(text, device, 2**16, 2_000, because)
    yield remedies.bf16(device, "bfloat16 has the range of float32")


RULE = Rule(
    name="gradient_underflow",
    title="Gradients underflow",
    severity="warning",
    explanation="Most elements of these gradients are so small that their dtype keeps few bits of them, or none: what "
    "becomes zero is not learned. The loss scale is there to lift them; it is too low, or missing; or all are 0 since "
    "it fell to next to nothing at one step, or code makes it smaller by and by though no step is skipped.",
    check=check,
    thresholds=(
        Threshold("subnormal_share", 0.5, "of the non-zero elements", "From here on a gradient underflows."),
        Threshold("tensor_share", 0.1, "of the gradients", "So many of a run's gradients must."),
    ),
    explains=("underflow_rising", "vanishing_gradient", "no_gradient", "loss_plateau"),
)
