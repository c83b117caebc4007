"""A loss that is to blame for skipped steps and no gradient: it was NaN or Inf at the first of them though all outputs
were finite, which no scale mends; or it grows with the loss scale itself.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.events import LossGraph, SavedValue
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.loss_scale.history import History
from rangewatch_server.rules.nonfinite import operations
from rangewatch_server.rules.rule import Remedy

FOLLOWING, OCTAVES = 5, 3.0
"""Skipped steps with a finite loss, and halvings of the scale in them, that show whether the loss follows it."""

POWERS, OFF = (0.8, 4.5), 0.5
"""Of the scale, by which the loss goes: 1 of a sum of gradients, 2 of a penalty of their squares. And by how many
halvings a step may be off: batches differ."""


class BadLoss(msgspec.Struct, frozen=True):
    """Why steps are skipped, as the end of a sentence; sentences, and advice."""

    why: str
    sentences: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    cause: str = "forward_arithmetic"


def follows_scale(evidence: Evidence, history: History, scaler: str, first: int, last: int) -> BadLoss | None:
    """Where the loss of these skipped steps fell as the scale did. None of them changed a weight: it is computed from
    gradients that are multiplied by the scale, as a gradient penalty of `scaler.scale(score)` is.
    """
    name = loss_name(evidence)
    if name is None:
        return None
    loss, scale = evidence.series(name, first, last + 1), history.columns(0, first, last + 1).high[scaler]
    count = min(len(loss), len(scale))
    loss, scale = loss[:count], scale[:count]
    there = np.isfinite(loss) & (loss > 0) & (scale > 0)
    if there.sum() < FOLLOWING or np.ptp(np.log2(scale[there])) < OCTAVES:
        return None
    # From where the rest of the loss is more than this term on, it does not follow any more.
    there[np.flatnonzero(there)[FOLLOWING:]] = False
    bits, of_scale = np.log2(loss[there]), np.log2(scale[there])
    power, level = np.polyfit(of_scale, bits, 1)
    if not POWERS[0] <= power <= POWERS[1] or np.abs(bits - level - power * of_scale).max() > OFF * power:
        return None
    high, low = float(loss[there][0]), float(loss[there][-1])
    return BadLoss(
        f"the loss follows the scale, from {high:.3g} to {low:.3g} in {FOLLOWING} skipped steps: it is computed from "
        "scaled gradients",
        (
            f"In the skipped steps from {first} on, which changed no weight, the loss went by the power {power:.2g} of "
            f"the loss scale: from {high:.3g} at a scale of {scale[there][0]:.0f} to {low:.3g} at "
            f"{scale[there][-1]:.0f}.",
            "Cause (likely): loss scaling: a term of the loss is made of gradients of a loss that scaler.scale() has "
            "multiplied, as a gradient penalty, and they are not divided by the scale.",
            "What would decide: print that term at two scales, with the same weights and batch.",
        ),
        (
            Remedy(
                "Divide such gradients by the scale before a penalty is made of them; the penalty itself is scaled "
                "with the loss.",
                "def unscaled_gradients(scaler, loss, inputs):\n"
                "    scaled = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)\n"
                "    return [each / scaler.get_scale() for each in scaled]",
                "the loss fell with the scale while no weight changed",
            ),
        ),
        "loss_scale",
    )  # fmt: skip


def bad_loss(evidence: Evidence, step: int, rank: int | None) -> BadLoss | None:
    """None where the loss of the step is not known to have been bad, or no output was recorded that was finite."""
    if not any(each.kind == "output" for each in evidence.tensors.entries):
        return None
    graphs = [
        known for event, known in evidence.details(LossGraph) if event.step == step and rank in (None, event.rank)
    ]
    graph = next((each for each in graphs if each.bad or each.risky), None)
    if graph is None and not _was_logged(evidence, step):
        return None
    first = f"The loss of step {step} was not finite, before any gradient was computed, and all outputs were."
    over = None if graph is None else next((each for each in graph.bad if _is_over(each)), None)
    made = None if graph is None else operations.made_by(graph)
    because = "the loss was not finite at the first skipped step, and what it is computed from was"
    why = "the loss itself is not finite, which no scale mends"
    if over is not None:
        why += ": a sum or product of it is beyond the range of its dtype"
        return BadLoss(why, (first, _over(over)), (_in_float32(over),))
    if made is not None:
        return BadLoss(why, (first, operations.made_text(made)), (operations.against(made.op, because),))
    text = (
        "Compute the loss in float32, outside of autocast, and print its terms: sums over many elements are beyond "
        "float16 from 65504 on, and Inf / Inf is NaN."
    )
    return BadLoss(why, (first,), (Remedy(text, _CODE, because),))


def _was_logged(evidence: Evidence, step: int) -> bool:
    """Whether any rank has a loss of that step that is not finite."""
    name = loss_name(evidence)
    if name is None:
        return False
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), 0, step, step + 1, ("nonfinite_count",), rows)
    return bool((np.asarray(block.columns["nonfinite_count"]) > 0).any())


def _is_over(saved: SavedValue) -> bool:
    value = saved.value
    return value.dtype in operations.NARROW and value.inf_count > 0 and not value.nan_count and not saved.is_given


def _over(saved: SavedValue) -> str:
    what = (
        "divisor" if (saved.op, saved.name) == ("Div", "other") else "result" if saved.name == "result" else "operand"
    )
    return (
        f"The {what} of {operations.word(saved.op)} ({saved.op}) in the loss was Inf in {saved.value.dtype}: a sum or "
        f"product that is beyond its range, as a sum over many elements is. Inf / Inf is NaN."
    )


def _in_float32(saved: SavedValue) -> Remedy:
    return Remedy(
        "Compute the loss in float32: its sums are beyond the range of "
        f"{saved.value.dtype}. Convert outputs and targets first, or leave autocast.",
        _CODE, f"{operations.word(saved.op)} in the loss was given Inf in {saved.value.dtype}, and outputs were finite",
    )  # fmt: skip


_CODE = (
    "def in_float32(loss_function, outputs, targets):\n"
    "    with torch.autocast(outputs.device.type, enabled=False):\n"
    "        return loss_function(outputs.float(), targets.float())"
)
