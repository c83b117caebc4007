"""A loss that was NaN or Inf at the first skipped step though all outputs were finite: no scale mends it, and no
gradient is to blame.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.events import LossGraph, SavedValue
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite import operations
from rangewatch_server.rules.rule import Remedy


class BadLoss(msgspec.Struct, frozen=True):
    """Sentences, and advice; `overflowed`: what an operation of it was given in 16 bits was Inf."""

    sentences: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    overflowed: bool


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
    if over is not None:
        return BadLoss((first, _over(over)), (_in_float32(over),), overflowed=True)
    if made is not None:
        return BadLoss((first, operations.made_text(made)), (operations.against(made.op, because),), overflowed=False)
    text = (
        "Compute the loss in float32, outside of autocast, and print its terms: sums over many elements are beyond "
        "float16 from 65504 on, and Inf / Inf is NaN."
    )
    return BadLoss((first,), (Remedy(text, _CODE, because),), overflowed=False)


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
