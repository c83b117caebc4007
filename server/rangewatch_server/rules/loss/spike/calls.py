"""Of a jump: the model, or a part of it, is called more often in a step, or in `eval()`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import EvaluationMode
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.loss.spike.bands import FEWEST, Riser, activations, loss_left, risers
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.recent import Array, tensors_of

MORE_OFTEN, STEADY = 2.0, 0.9
"""How many times as often as before modules must be called, and the part of the steps before in which they were called
as often as usual."""


class Calls(msgspec.Struct, frozen=True):
    """(n,) how often modules were called in a step before, and at the step; `is_more`: of which it is more often."""

    usual: Array
    now: Array
    is_more: Array


def _calls(evidence: Evidence, step: int) -> Calls | None:
    """None where too little is known."""
    low, outputs = max(evidence.start, step - HISTORY), activations(evidence)
    if step - low < FEWEST or not len(outputs):
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, ("call_count",), outputs)
    calls = np.asarray(block.columns["call_count"], np.float64)
    calls = calls[(calls > 0).all(axis=1)] / len(evidence.ranks)
    if not len(calls):
        return None
    usual, now = np.median(calls[:, :-1], axis=1), calls[:, -1]
    is_more = ((calls[:, :-1] == usual[:, None]).mean(axis=1) >= STEADY) & (now >= MORE_OFTEN * usual)
    return Calls(usual, now, is_more)


GROWN_BITS = 10.0
"""Bits by which an output of a longer recurrence is above its usual height where it is the values that grow."""

SUMMED = 0.25
"""Part of the bits of so many microbatches from which on gradients are their sum: of what differs from one to the next
that has half of them, and their mean none or fewer."""


def _are_summed(evidence: Evidence, calls: Calls, step: int) -> bool | None:
    """Whether the gradients of most parameters have risen as a sum of so many does; None where there are none."""
    gradients, low = tensors_of(evidence, "grad"), max(evidence.start, step - HISTORY)
    if not len(gradients):
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, ("amax",), gradients)
    amax = np.asarray(block.columns["amax"], np.float64)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", low, step + 1)
        amax = amax / np.where(scale > 0, scale, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(amax)
    bits = bits[np.isfinite(bits).all(axis=1)]
    if not len(bits):
        return None
    rise = float(np.median(bits[:, -1] - np.median(bits[:, :-1], axis=1)))
    return rise >= SUMMED * float(np.log2((calls.now / calls.usual).min()))


def summed_losses(evidence: Evidence, step: int) -> tuple[int, int] | None:
    """How often the model was called in a step before and is since `step`, where gradients have not risen with it: they
    are averages, and a loss that rises as far is logged as a sum. None where it is not so."""
    calls = _calls(evidence, step)
    if calls is None or not calls.is_more.all() or _are_summed(evidence, calls, step) is not False:
        return None
    return int(calls.usual.min()), int(calls.now.min())


def longer_recurrence(evidence: Evidence, step: int) -> tuple[int, int] | None:
    """How often a part of the model was called in a step before and is since `step`, where no output has risen with it:
    more is to be foreseen, and nothing was multiplied. None where it is not so."""
    calls = _calls(evidence, step)
    if calls is None or risers(evidence, activations(evidence), step):
        return None
    longer = np.flatnonzero(calls.is_more & (calls.usual > 1))
    return (int(calls.usual[longer[0]]), int(calls.now[longer[0]])) if len(longer) else None


def of_calls(
    evidence: Evidence, name: str | None, step: int, gradients: list[Riser], outputs: list[Riser]
) -> list[Candidate]:
    """From that very step on all of the model is called more often in a step, or a part of it that was called more than
    once is; and gradients have risen with it, or values. A loss is computed of values: of a recurrence it rises where
    these do, and gradients with it."""
    calls = _calls(evidence, step)
    if calls is None:
        return []
    usual, now = calls.usual, calls.now
    if calls.is_more.all():
        text = (
            f"From that very step on the model is called {now.min():g} times in a step, where it was {usual.min():g}: "
            "the losses of microbatches, and their gradients, are summed unless each is divided by their number."
        )
        return [Candidate("optimizer", 0.9, (text,))] if _are_summed(evidence, calls, step) else []
    longer = np.flatnonzero(calls.is_more & (usual > 1))
    if (
        not len(longer)
        or not (gradients or outputs)
        or (not outputs and name is not None and loss_left(evidence, name, step))
    ):
        return []
    text = (
        f"From that very step on a part of the model is called {now[longer[0]]:g} times in a step, where it was "
        f"{usual[longer[0]]:g}: what one round multiplies values and gradients by is taken to that power."
    )
    # Where values are multiplied so far, gradients are with them; a chaotic recurrence has those alone.
    is_of_values = max((each.bits for each in outputs), default=0.0) >= GROWN_BITS
    return [Candidate("forward_arithmetic" if is_of_values else "backward_arithmetic", 0.88, (text,))]


UPDATES_IN_EVAL = 4
"""Steps in `eval()` after which the loss may jump by what the updates of those steps have done."""


def of_mode(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """From that very step on, or a few before, the model is trained in `eval()`, after it had been in `train()`."""
    for event, known in evidence.details(EvaluationMode):
        since = event.step - known.steps + 1
        if known.steps > 0 and known.was_trained and 0 <= step - since < UPDATES_IN_EVAL:
            norms = (
                f"{known.norms} batch norm{'s go' if known.norms > 1 else ' goes'} by running statistics from there on"
            )
            drops = f"{known.dropouts} dropout{'s drop' if known.dropouts > 1 else ' drops'} nothing out any more"
            does = " and ".join([norms] * (known.norms > 0) + [drops] * (known.dropouts > 0))
            when = "that very step" if since == step else f"step {since}"
            text = f"The model is in eval() from {when} on, and was in train() before: {does}."
            yield Candidate("eval", 0.6 if not known.norms else 0.92 if since == step else 0.88, (text,))
            return
