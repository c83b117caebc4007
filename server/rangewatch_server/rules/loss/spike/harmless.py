"""What makes a jump of the loss harmless: data, a size, a part or a loss that became another at its very step."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction, Optimizers
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import rates
from rangewatch_server.rules.loss.spike.bands import activations, risers
from rangewatch_server.rules.loss.spike.batch import given_moved
from rangewatch_server.rules.loss.spike.calls import longer_recurrence, summed_losses
from rangewatch_server.rules.loss.spike.cause import Explanation
from rangewatch_server.rules.loss.spike.changed_loss import SEE_LOSS, of_changed_loss
from rangewatch_server.rules.loss.spike.jumps import HALF, HISTORY, Jump
from rangewatch_server.rules.loss.spike.weights import thawed_before
from rangewatch_server.rules.nonfinite.causes import SHOWN
from rangewatch_server.rules.recent import Array, tensors_of
from rangewatch_server.rules.rule import Remedy

AT_FIRST = 8
"""First steps, whose median is what the loss began with."""

OUTPUT_BITS = 3.0
"""Bits by which outputs are above their usual height where more than the data changed."""

ABOVE_FIRST, WRONG = 2.0, 16.0
"""How many times as high as in the first steps a loss may be that only another size of the batches explains; and how
high a cross entropy: what is sure, and wrong about rows of another length, has no bound."""

INPUT_ELEMENTS, TARGET_COUNT, CROSS = "input_elements", "target_count", ("nll", "bce")

SLACK, MOST_SLACK = 2.5, 3.5
"""How many times as large as ever before gradients may be, in the median, and each: longer sequences sum up more of it.
"""

PASSING, STAYED = 32, 0.75
"""Steps within which a loss that is low again at once was that of a few batches, and the part of its rise by which it
must then have fallen."""


class Harmless(msgspec.Struct, frozen=True):
    """Why a jump is none of the training's own, as evidence, and what to look at."""

    sentence: str
    remedy: Remedy


def why_harmless(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> Harmless | None:
    """What makes a jump of the loss `name` harmless that `cause` explains best otherwise; None: nothing does."""
    if summed := _summed(evidence, jump):
        return Harmless(summed, _DIVIDE_LOGGED)
    change = (
        _other_size(evidence, name, jump, cause)
        or _longer(evidence, name, jump)
        or _stage(evidence, jump, cause)
        or _new_part(evidence, jump, cause)
    )
    if change:
        return Harmless(change, _SEE_CHANGE)
    if other := _other_loss(evidence, name, jump, cause):
        return Harmless(other, SEE_LOSS)
    if restart := _restart(evidence, jump, cause):
        return Harmless(restart, _SEE_RESTART)
    return Harmless(_HARDER, _SEE_DATA) if _is_as_at_first(evidence, name, jump, cause) else None


_SEE_DATA = Remedy(
    "Look whether the data became harder at this step: if so, nothing is wrong. If not, see whether weights were set "
    "back.", "", "the loss is no higher than at first, and no gradient is larger",
)  # fmt: skip

_SEE_CHANGE = Remedy(
    "Look whether what changed at this step was meant to: if so, nothing is wrong. If not, see whether weights were "
    "set back.", "", "it changed at the very step of the jump",
)  # fmt: skip

_SEE_RESTART = Remedy(
    "Where restarts are meant nothing is wrong. If the loss takes long to come down after each, let the schedule begin "
    "anew at a lower rate.", "", "the rate was as high before, and the loss rose with it",
)  # fmt: skip

_DIVIDE_LOGGED = Remedy(
    "Divide what is logged by the number of microbatches, so that it can be compared with the steps before.", "",
    "the loss rose with their number, and gradients did not",
)  # fmt: skip

_HARDER = (
    "It is no higher than it was at first, and no gradient is larger than then or right before: what the model is "
    "given may have become harder, as a curriculum does."
)

SIZE = 1.1
"""How many times as much, or as little, as ever in the steps before is another size."""

NOT_OF_SIZE = ("learning_rate", "weight", "optimizer")
"""Causes that say more than a size, where they are shown."""


def _other_size(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the model is given inputs of another size, or the loss another number of targets that is
    learned since, from the very step of the jump on, and the loss is not far above what it was at first; else "".
    """
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in NOT_OF_SIZE):
        return ""
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began = began[np.isfinite(began)]
    is_cross = any(known.op in CROSS for _, known in evidence.details(LossFunction))
    if not len(began) or not jump.level <= max(ABOVE_FIRST * float(np.median(began)), WRONG if is_cross else 0.0):
        return ""
    if sizes := _sizes(evidence, INPUT_ELEMENTS, jump):
        return (
            f"From that step on the model is given {sizes.now:.6g} elements a step, where {sizes.least:.6g} to "
            f"{sizes.most:.6g} were usual: the batches are of another size, and the loss of those is another."
        )
    if (sizes := _sizes(evidence, TARGET_COUNT, jump)) and _is_learned(evidence, name, jump):
        return (
            f"From that step on {sizes.now:.6g} targets, by their weights, count in the loss, where it was "
            f"{sizes.least:.6g} to {sizes.most:.6g}: rows are longer, or others are left out, and the loss of those, "
            "which falls since, is another."
        )
    return ""


class Sizes(msgspec.Struct, frozen=True):
    """The median size since a step, and the range before it."""

    now: float
    least: float
    most: float


def _sizes(evidence: Evidence, series: str, jump: Jump) -> Sizes | None:
    """Those of a series that is beyond its range from the very step of the jump on; None where it is not."""
    if not evidence.has_series(series):
        return None
    low = max(evidence.start, jump.step - HISTORY)
    values = evidence.series(series, low, jump.step + jump.count)
    before, since = values[: jump.step - low], values[jump.step - low :]
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    if not len(before) or not len(since):
        return None
    if not (since.min() > SIZE * before.max() or SIZE * since.max() < before.min()):
        return None
    return Sizes(float(np.median(since)), float(before.min()), float(before.max()))


def _is_learned(evidence: Evidence, name: str, jump: Jump) -> bool:
    """Whether the loss has come down by far since the jump: of targets that have become wrong it does not."""
    values = _since(evidence, name, jump)
    return len(values) >= FEW_SINCE and _late(values) <= HALF * jump.level


def _since(evidence: Evidence, name: str, jump: Jump) -> Array:
    """(n,) finite values from the jump on."""
    values = evidence.series(name, jump.step, min(evidence.whole_stop, jump.step + HISTORY))
    return values[np.isfinite(values)]


def _late(values: Array) -> float:
    """The median of the last third of them, and of two at least."""
    return float(np.median(values[-max(2, len(values) // 3) :]))


def _longer(evidence: Evidence, name: str, jump: Jump) -> str:
    """The same of a recurrence that is longer from the very step of the jump on, and whose values did not rise."""
    calls = longer_recurrence(evidence, jump.step)
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began = began[np.isfinite(began)]
    if calls is None or not len(began) or not jump.level <= ABOVE_FIRST * np.median(began):
        return ""
    return (
        f"From that step on a part of the model is called {calls[1]} times in a step, where it was {calls[0]}: what it "
        "is to foresee is longer, and the loss of that is another."
    )


SUM_SLACK = 1.25
"""How many times as high as so many usual losses their sum may be."""


def _summed(evidence: Evidence, jump: Jump) -> str:
    """A sentence, where the loss rose no further than the calls of the model became more, and gradients did not."""
    calls = summed_losses(evidence, jump.step)
    if calls is None or not 0 < jump.level <= SUM_SLACK * jump.usual * calls[1] / calls[0]:
        return ""
    return (
        f"From that step on the model is called {calls[1]} times in a step, where it was {calls[0]}, and gradients "
        "have not risen with that: what is logged is the sum of as many losses, and what is trained on is their mean."
    )


STAGE = re.compile(
    r"(.*[/._ ])?(\w+_)?(stage|phase|level|task|curriculum|difficulty|domain|seq_?len(gth)?|resolution|image_?size|"
    r"num_classes|kl_?weight|noise_?(level|scale|std)?|sigma)",
    re.IGNORECASE,
)
"""Names under which loops log what they set themselves by a plan, and not what comes of the training."""

STOOD = 16
"""Steps for which such a value must have stood still before the step."""


def _stage(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the loop logs a value of its own plan that changed at the very step after it stood; else ""."""
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in NOT_OF_SIZE):
        return ""
    low = max(evidence.start, jump.step - STOOD)
    if jump.step - low < STOOD:
        return ""
    for name in sorted(evidence.run.names().series):
        if not STAGE.fullmatch(name):
            continue
        values = evidence.series(name, low, jump.step + 2)
        before, since = values[: jump.step - low], values[jump.step - low :]
        before, since = before[np.isfinite(before)], since[np.isfinite(since)]
        has_stood = len(before) and len(since) and (before == before[0]).all() and (since == since[0]).all()
        if has_stood and since[0] != before[0]:
            return (
                f"At that very step the loop's own value {name!r}, which it logs, went from {before[0]:.6g} to "
                f"{since[0]:.6g}: where that makes the task another, the loss is another too."
            )
    return ""


FALLS, NO_HIGHER = 0.95, 1.3
"""Part of the first value of another loss below which its last ones are that is learned; and how many times as high
none of them may be."""


def _other_loss(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the loss is computed by other operations from that very step on, be it no sum in place of a
    mean and no term that is far larger than all it was, and falls since; else "": where it is meant nothing is wrong.
    """
    other = of_changed_loss(evidence, jump.step, cause.rank)
    if other is None or other.is_sum or cause.cause != other.candidate.cause:
        return ""
    if other.is_term and not jump.level <= MOST_OF_TERM * abs(jump.usual):
        return ""
    values = _since(evidence, name, jump)
    if len(values) < FEW_SINCE or values.max() > NO_HIGHER * values[0] or not _late(values) <= FALLS * values[0]:
        return ""
    return f"{other.candidate.supports[0]} It falls since."


MOST_OF_TERM = 10.0
"""How many times what the loss was it may be with a term that is added by plan."""

FEW_SINCE = 4
"""Values of another loss that show whether it is learned."""

RESTARTED, JUST, LIKE, BEARS, LONGEST = 3.0, 4, 1.05, 64, 8_192
"""How many times as high the rate is from one step to the next where a schedule begins anew, up to so many steps before
the jump; how far above all before it may be; steps after which the loss must be low again, and steps back in which the
rate must have been as high."""


def _restart(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where a schedule that has had this rate before began anew right before the jump, as a cosine with
    warm restarts does, and the loss has come down again, or may yet; else ""."""
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in ("weight", "optimizer")):
        return ""
    begin = max(evidence.start, jump.step - LONGEST)
    rate = rates(evidence, begin, jump.step + 1)
    low = max(1, len(rate) - 1 - JUST)
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = rate[low:] / rate[low - 1 : -1]
    known = np.flatnonzero(rises >= RESTARTED)
    if not len(known):
        return ""
    at = low + int(known[0])
    before = rate[:at][np.isfinite(rate[:at])]
    is_like = len(before) > BEARS // 2 and rate[at] <= LIKE * before.max()
    is_over = jump.back is not None and jump.back - jump.step <= BEARS
    if not is_like or not (is_over or (jump.back is None and evidence.whole_stop - jump.step <= BEARS)):
        return ""
    return (
        f"At step {begin + at} the learning rate went back from {rate[at - 1]:.3g} to {rate[at]:.3g}, as high "
        "as it was before: a schedule with restarts makes the loss rise for some steps."
    )


GARBAGE = 1e15
"""Magnitude of an output that no initialisation gives, and memory that was never written may."""


def _is_garbage(evidence: Evidence, step: int) -> bool:
    outputs = tensors_of(evidence, "output")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step, step + 1, ("amax",), outputs)
    return bool(np.asarray(block.columns["amax"], np.float64).max(initial=0.0) >= GARBAGE)


def _new_part(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where parameters got the first gradient of the run at the very step of the jump: they have not been
    updated yet, so that no update made it, but a forward or a loss that goes another way; else ""."""
    made = [
        name
        for event, known in evidence.details(Optimizers)
        if abs(event.step - jump.step) <= 1
        for name in (*known.replaced, *known.renewed)
    ]
    if made and not _is_garbage(evidence, jump.step):
        more = f", and so for {len(made) - 1} more" if len(made) > 1 else ""
        return (
            f"At that very step another parameter took the place of {made[0]}{more}: a head or a table that has grown, "
            "or was made anew, has to be learned."
        )
    thawed = thawed_before(evidence, jump.step)
    if thawed is None or thawed.step != jump.step or cause.weights.get("weight", 0.0) >= SHOWN:
        return ""
    more = f" and {thawed.count - 1} more parameters" if thawed.count > 1 else ""
    return (
        f"At that very step {thawed.fqn}{more} got the first gradient of the run: the loss is of layers that had no "
        "part in it before, as where a network is trained layer by layer."
    )


def _is_as_at_first(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> bool:
    """Whether the loss is as in the first steps at most, and all gradients are there, and no larger than they were
    then or right before; the rate and the outputs are as usual.
    """
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began, gradients = began[np.isfinite(began)], tensors_of(evidence, "grad")
    low, at, stop = max(evidence.start, jump.step - HISTORY), jump.step, jump.step + 3
    is_low = len(began) and jump.level <= np.median(began)
    is_explained = "learning_rate" in cause.weights or cause.cause in ("weight", "optimizer")
    is_explained = is_explained or _is_of_data(evidence, jump, cause) or _is_passing(evidence, name, jump)
    if not is_low or not len(gradients) or at <= low or is_explained:
        return False
    if risers(evidence, tensors_of(evidence, "update"), at - 1):
        return False
    if any(each.bits >= OUTPUT_BITS for each in risers(evidence, activations(evidence), at + 2)):
        return False
    names = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, gradients)
    amax = np.asarray(block.columns["amax"], np.float64)
    early = evidence.run.slice(
        RANGES, list(evidence.ranks), 0, evidence.start, evidence.start + AT_FIRST, ("amax",), gradients
    )
    at_first = np.asarray(early.columns["amax"], np.float64).max(axis=1)
    usual = np.maximum(at_first, amax[:, : at - low].max(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.nan_to_num(amax[:, at - low :].max(axis=1) / usual, nan=0.0, posinf=np.inf)
    if times.max() > MOST_SLACK or np.median(times) > SLACK:
        return False
    had, have = (amax[:, : at - low] > 0).mean(axis=1) > HALF, (amax[:, at - low :] > 0).any(axis=1)
    bad = np.asarray(block.columns["nan_count"]) + np.asarray(block.columns["inf_count"])
    return bool(had.any() and (have | ~had).all() and not bad.any())


HARDER_BITS = 2.0
"""Bits by which inputs may become larger where they become harder: noise that is added by a plan, a wider range."""


def _is_of_data(evidence: Evidence, jump: Jump, cause: Explanation) -> bool:
    """Whether the batches since are shown to be others, and by more than a curriculum makes them so."""
    moved = given_moved(evidence, cause.rank, jump.step)
    return cause.weights.get("data", 0.0) >= SHOWN and (moved is None or moved.bits >= HARDER_BITS)


def _is_passing(evidence: Evidence, name: str, jump: Jump) -> bool:
    """Whether the loss stayed high until it was low again at once, within steps: no data that have become harder do so,
    and what is learned of them brings the loss down by and by."""
    if jump.back is None or jump.back - jump.step > PASSING:
        return False
    values = evidence.series(name, jump.step, jump.back + 1)
    values = values[np.isfinite(values)]
    rise = jump.level - jump.usual
    return len(values) > 1 and bool(
        values[-2] >= jump.usual + HALF * rise and values[-1] <= jump.usual + (1 - STAYED) * rise
    )
