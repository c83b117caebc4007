"""Prediction and target have other shapes, so that the loss compares every prediction with every target."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rangewatch.wire.events import LossBroadcast
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

FUNCTIONS = {"MseLoss": "mse_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss"}
SIGNS = {"Sub": "a difference", "Mul": "a product", "Div": "a quotient", "Add": "a sum"}


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first rank that reported it."""
    for event, known in evidence.details(LossBroadcast):
        if len(known.result) > 1 and 0 < math.prod(known.prediction) < math.prod(known.result):
            yield _finding(known, event.rank, event.step)
            return


def _finding(known: LossBroadcast, rank: int, step: int) -> Finding:
    shape, result = _shape(known.prediction), _shape(known.result)
    against = _shape(known.other) if known.other else "what has no gradient"
    where = FUNCTIONS.get(known.op) or f"{SIGNS.get(known.op, known.op)} before the mean or sum"
    is_column = len(known.prediction) == len(known.result)
    rows = known.result[0]
    return Finding(
        rank=rank, step=step, subject="broadcast",
        summary=f"{place(step, rank)}: the loss compares every prediction with every target: {shape} against "
        f"{against} gave {result}.",
        evidence=(
            f"In the loss ({where}) what has a gradient, the prediction, has the shape {shape}, and the result "
            f"{result}: {math.prod(known.result) // math.prod(known.prediction)} times as many elements.",
            f"Each of the {rows} rows is compared with all {rows}: the best answer is then one and the same for every "
            "row, the mean of the targets, and the loss falls no lower than their variance.",
            "Cause (shown): broadcasting of two shapes that differ by a dimension of size 1. Against that: it may be "
            "meant, as where pairs of rows are compared; what has no gradient may be weights of the rows, too, which "
            "then count for nothing.",
        ),
        remedy=(
            Remedy(
                "Give prediction and target the same shape before the loss, by squeeze or by a dimension more, and "
                "assert it.",
                _code(known, is_column=is_column),
                "the shapes in the graph of the loss",
            ),
        ),
        facts={
            "op": known.op, "prediction": list(known.prediction), "other": list(known.other),
            "result": list(known.result), "cause_class": "forward_arithmetic",
        },
    )  # fmt: skip


def _code(known: LossBroadcast, *, is_column: bool) -> str:
    line = (
        "pred = pred.squeeze(1)  # or: target = target[:, None]"
        if is_column
        else "target = target.squeeze(1)  # or: pred = pred[:, None]"
    )
    function = FUNCTIONS.get(known.op)
    use = f"torch.nn.functional.{function}(*alike(pred, target))" if function else "pred, target = alike(pred, target)"
    return (
        "def alike(pred, target):\n"
        f"    {line}\n"
        "    assert pred.shape == target.shape, (pred.shape, target.shape)\n"
        "    return pred, target\n\n"
        f"# {use}"
    )


def _shape(sizes: tuple[int, ...]) -> str:
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"


RULE = Rule(
    name="target_broadcast",
    title="A target is broadcast in the loss",
    severity="warning",
    explanation="A prediction of shape (B, 1) and a target of (B,), or the other way round, are broadcast to (B, B) in "
    "`mse_loss`, `(pred - target) ** 2` and the like. Nothing fails: the loss falls a little, down to the variance of "
    "the targets, and the model learns their mean. The shapes in the graph of the first losses say so, or of the first "
    "that is computed otherwise: what has a gradient is spread over the batch a second time by what has none, and goes "
    "to a mean or a sum. Pairs that are meant, where both have a gradient or where the loss itself adds the dimension "
    "(`unsqueeze`), are not reported, nor batches of fewer than five rows. Not seen inside a loss that is compiled.",
    check=check,
    explains=(
        "loss_plateau",
        "loss_stuck",
        "update_ratio",
        "vanishing_gradient",
        "loss_spike",
        "short_spike",
        "exploding_gradient",
    ),
)
