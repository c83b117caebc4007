"""Every gradient has been exactly zero since the first step, though the loss is not: nothing in it is learned from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite.tensor_phrases import name_of
from rangewatch_server.rules.phrases import loss_called, place, the
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

LASTING = 48
"""Steps of which it must be so. A warm-up of the loss's own, as by an annealed weight, is over by then as a rule."""

FIRST = 8
"""First steps, in one of which they may have become 0."""

FEWEST = 3
"""Parameters: of fewer one that is unused may be all."""

NARROW = ("float16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes in which a gradient may be zero because it is small, or because one behind it was: `gradient_underflow`."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the whole model."""
    name, tensors = loss_name(evidence), tensors_of(evidence, "grad")
    start, stop = evidence.start, evidence.whole_stop
    if name is None or len(tensors) < FEWEST or evidence.is_loss_scaled or stop - start < LASTING:
        return
    entries = evidence.tensors.entries
    if any(each.dtype in NARROW and each.kind in BACKWARD for each in entries):
        return
    since = _zero_from(evidence, tensors, start)
    if stop - since < LASTING or not _are_zero(evidence, tensors, since, stop):
        return
    values = evidence.series(name, since, min(stop, since + LASTING))
    values = values[np.isfinite(values)]
    if len(values) >= LASTING // 2 and np.median(np.abs(values)) > 0:
        reached = _reached(evidence, since)
        is_flat = reached is not None and _is_flat(evidence, reached, since)
        yield _finding(evidence, name, since, values, len(tensors), reached, is_flat=is_flat)


def _zero_from(evidence: Evidence, tensors: Array, start: int) -> int:
    """The step after the last of the first few at which any of them was not 0: units may die in the first updates."""
    amax = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + FIRST, ("amax",), tensors)
    other = np.flatnonzero((np.asarray(amax.columns["amax"], np.float64) > 0).any(axis=0))
    return start + int(other[-1]) + 1 if len(other) else start


def _are_zero(evidence: Evidence, tensors: Array, start: int, stop: int) -> bool:
    """Of all of the run; the first steps first, which say so of most runs that are as usual."""
    for low, high in ((start, start + LASTING), (start, stop)):
        level = level_for(high - low, SCAN_COLUMNS)
        block = evidence.run.slice(RANGES, list(evidence.ranks), level, low, high, COLUMNS, tensors)
        calls, *others = (np.asarray(block.columns[name], np.float64) for name in COLUMNS)
        if any((each > 0).any() for each in others) or not (calls > 0).any(axis=1).all():
            return False
    return True


def _reached(evidence: Evidence, start: int) -> TensorEntry | None:
    """The output nearest to the loss of which a gradient other than zero came in the first steps; None where none did,
    or none is recorded."""
    outputs = tensors_of(evidence, "grad_output")
    if not len(outputs):
        return None
    amax = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + LASTING, ("amax",), outputs)
    had = outputs[(amax.columns["amax"] > 0).any(axis=1)]
    return evidence.tensors.entries[int(had[np.argmin(evidence.tensors.position[had])])] if len(had) else None


def _is_flat(evidence: Evidence, reached: TensorEntry, start: int) -> bool:
    """Whether the gradient ends at a function without a slope: `reached` has it, no output before has, and none of
    those is zero itself, so that nothing was multiplied by zeros there."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    outputs = tensors_of(evidence, "output").tolist()
    at = max((position[row] for row in outputs if entries[row].fqn == reached.fqn), default=-1)
    inner = [row for row in outputs if position[row] < at and entries[row].fqn != reached.fqn]
    fqns = {entries[row].fqn for row in inner}
    behind = [row for row in tensors_of(evidence, "grad_output").tolist() if entries[row].fqn in fqns]
    if not behind:
        return False
    rows = np.array([*inner, *behind], np.int64)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + FIRST, COLUMNS, rows)
    calls, amax, *_ = (np.asarray(block.columns[name], np.float64) for name in COLUMNS)
    own = np.array([row for row in outputs if position[row] == at], np.int64)
    last = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + FIRST, ("amax",), own)
    if not np.asarray(last.columns["amax"], np.float64).any():
        return False  # units that are all dead give zeros
    given, gradients = slice(None, len(inner)), slice(len(inner), None)
    is_given = (amax[given].max(axis=1) > 0)[(calls[given] > 0).any(axis=1)]
    return bool(len(is_given) and is_given.all() and (calls[gradients] > 0).any() and not amax[gradients].any())


BACKWARD = ("output", "grad_output", "grad")

COLUMNS = ("call_count", "amax", "nan_count", "inf_count")


def _finding(
    evidence: Evidence, name: str, start: int, values: Array, count: int, reached: TensorEntry | None, *, is_flat: bool
) -> Finding:
    """`start`: the first step of the zeros."""
    last, rank, has_died = evidence.whole_stop - 1, only_rank(evidence), start > evidence.start
    is_constant = bool(values.max() == values.min())
    loss = f"{loss_called(name)} was {values[0]:.6g}" + (" at each of them" if is_constant else " at the first of them")
    return Finding(
        rank=rank, step=start, subject="no gradient",
        summary=f"{place(start, rank)}: the gradients of all {count} parameters are zero in every element, and have "
        "been since: nothing is learned from this loss.",
        evidence=(
            f"So it was at all steps from {start} to {last}; {loss}.",
            *(
                _dead(start) if has_died
                else _OF_THE_LOSS if reached is None
                else _without_slope(reached) if is_flat
                else _within_the_model(reached)
            ),
        ),
        remedy=(
            _DEAD if has_died
            else _masked(is_constant=is_constant) if reached is None
            else _straight_through(reached) if is_flat
            else _multiplied(reached),
        ),
        facts={
            "parameters": count, "loss": float(values[0]), "is_constant": is_constant,
            "cause_class": (
                "dead_units" if has_died
                else "mask" if reached is None
                else "backward_arithmetic" if is_flat
                else "weight"
            ),
        },
    )  # fmt: skip


def _dead(since: int) -> tuple[str, ...]:
    return (
        f"Cause (likely): units that died in the first updates. Before step {since} there were gradients: since then "
        "what the loss is computed of is 0 for every row, as behind a ReLU that is the last layer, or is called as a "
        "function, and whose inputs have all become negative. Against that: a mask, a factor of 0 or a rounding that "
        "came at that step gives zeros as well.",
        "What would decide: print what the model gives, and what its last layer gives before the activation.",
    )


_DEAD = Remedy(
    "Let the last layer have no ReLU (softplus bounds from below, too, and has a slope everywhere), or begin with a "
    "smaller learning rate or a warm-up, so that the first updates do not drive all units below 0.",
    "warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=100)\n"
    "optimizer.register_step_post_hook(lambda *_: warm_up.step())",
    "there were gradients in the first steps, and all have been 0 since",
)

_OF_THE_LOSS = (
    "Cause (likely): a mask that leaves nothing, as labels that are all ignored (-100) because the answers were cut "
    "off with the end of a sequence that is too long. Against that: a factor of 0, or a function without a slope (a "
    "step, a rounding, a clamp), gives zeros as well.",
    "What would decide: count the labels of one batch that are not ignored, right before the loss.",
)


def _within_the_model(reached: TensorEntry) -> tuple[str, ...]:
    name = f"{the(reached)[0].upper()}{the(reached)[1:]}"
    return (
        f"Cause (likely): weights that are all zero. {name} is not zero, so that the loss has a slope, and it is lost "
        "within the model: where two factors of a product are zero, as both matrices of an adapter (LoRA), or a gate "
        "and what it lets through, neither gets a gradient. Against that: units that are all dead, or a function "
        "without a slope (a step, a rounding), give zeros as well.",
        "What would decide: print the largest magnitude of each parameter that is trained.",
    )


def _without_slope(reached: TensorEntry) -> tuple[str, ...]:
    name = f"{the(reached)[0].upper()}{the(reached)[1:]}"
    return (
        f"Cause (likely): a function without a slope. {name} is not zero, and those of all outputs before it are, "
        "though none of these outputs is zero: between them may lie a rounding, a sign, a comparison or an argmax, "
        "whose derivative is 0. Against that: a factor that is 0, or a clamp or sigmoid that is saturated, gives zeros "
        "as well.",
        f"What would decide: look in the forward of {name_of(reached.fqn)}, and in what comes right before it, for "
        "round, floor, sign, argmax or a comparison.",
    )


def _straight_through(reached: TensorEntry) -> Remedy:
    return Remedy(
        "Train on what it is before the rounding, and round where it is evaluated alone; or let the gradient pass the "
        "rounding (a straight-through estimator).",
        "rounded = score + (score.round() - score).detach()  # the value of round, and the slope of score",
        f"{the(reached)} is not zero, and those of all outputs before it are",
    )


def _multiplied(reached: TensorEntry) -> Remedy:
    return Remedy(
        "Initialise one of the two factors of each such product other than with zeros: of an adapter (LoRA) A at "
        "random and B with zeros. See whether code that initialises the model ran after the adapters were put in.",
        "for name, parameter in model.named_parameters():\n"
        "    if parameter.requires_grad and not parameter.any():\n"
        "        print(name, 'is zero in every element')",
        f"{the(reached)} is not zero, and that of each parameter is",
    )


def _masked(*, is_constant: bool) -> Remedy:
    return Remedy(
        "Look at what the loss is made of: are there labels that count, or does a mask, a factor of 0, a rounding or a "
        "clamp lie between the outputs and it?",
        "def check_labels(labels, ignored=-100):  # right before the loss\n"
        "    assert (labels != ignored).any(), 'no label of this batch counts'",
        "a backward reached each parameter, and brought zeros alone" + (
            "; the loss did not change at all either" if is_constant else ""
        ),
    )  # fmt: skip


RULE = Rule(
    name="no_gradient",
    title="No gradient at all",
    severity="warning",
    explanation="From the first steps on the gradients of all parameters are zero in every element, while the loss is "
    "not 0: what is trained does not change it. Weight decay alone may move the weights, so that they seem to be "
    "trained. Not said with a loss scaler or of float16 gradients, which may be zero because they are small, nor "
    "where the loss is 0, as of a policy that was never rewarded. Needs a loss.",
    check=check,
)
