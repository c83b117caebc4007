"""A loss that is computed by other operations from the very step of its jump on."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.events import LossChanged
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.rule import Remedy

NAME = "how the loss is computed"

TEST = "Compute the loss of one batch as it was computed before that step, and as it is since. Either may be meant."


class ChangedLoss(msgspec.Struct, frozen=True):
    """`is_sum`: a sum has taken the place of a mean. `is_term`: something is added to what it was."""

    candidate: Candidate
    is_sum: bool
    is_term: bool


def of_changed_loss(evidence: Evidence, step: int, rank: int | None) -> ChangedLoss | None:
    """Of a jump at `step` of one rank, or of all; None where the loss is computed as before, or that is not known."""
    known = next(
        (
            known
            for event, known in evidence.details(LossChanged)
            if event.step == step and rank in (None, event.rank) and known.before and known.after
        ),
        None,
    )
    if known is None or known.before == known.after:
        return None  # of other shapes: `target_broadcast` says so where that is wrong
    is_sum = _as_means(known.before) == _as_means(known.after) and _sums(known.after) > _sums(known.before)
    is_term = _has_term(known.before, known.after)
    what = " A sum has taken the place of a mean." if is_sum else " Something is added to what it was." * is_term
    text = (
        "From that very step on the loss is computed by other operations than at any step before in this process, as "
        f"its graph says. Nearest to it are {_listed(known.after)}, and were {_listed(known.before)}.{what}"
    )
    if is_term and (scaled := _scaled(evidence, step)):
        return ChangedLoss(Candidate("loss_scale", 0.94, (f"{text} {scaled}",)), is_sum, is_term)
    cause = "regularization" if is_term else "forward_arithmetic"
    return ChangedLoss(Candidate(cause, 0.93, (text,)), is_sum, is_term)


def _has_term(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether what the loss was is one of two that are added now, be it behind the same factor, as a loss scale."""
    at = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
    return at < min(len(before), len(after)) and after[at] == "Add" and before[at] in after[at + 1 : at + 3]


LEAST_SCALE = 256.0
"""Loss scale from which on a term that is made of scaled gradients is known by its size."""


def _scaled(evidence: Evidence, step: int) -> str:
    """A sentence, where the loss rose by the loss scale and more with the term; else ""."""
    name, low = loss_name(evidence), max(evidence.start, step - HISTORY)
    if name is None or not evidence.is_loss_scaled:
        return ""
    losses, scales = evidence.series(name, low, step + 1), evidence.series("loss_scale", low, step + 1)
    before, scale = losses[:-1][np.isfinite(losses[:-1])], float(scales[-1])
    if not len(before) or not scale >= LEAST_SCALE or not losses[-1] >= scale * np.median(np.abs(before)) > 0:
        return ""
    return (
        f"With it the loss is {losses[-1] / np.median(np.abs(before)):.3g} times what it was, and the loss scale is "
        f"{scale:.5g}: gradients that torch.autograd.grad gives of a scaled loss are as many times too large, and a "
        "penalty of their squares by its square."
    )


def _as_means(names: tuple[str, ...]) -> list[str]:
    return ["Mean" if each == "Sum" else each.replace(" sum", " mean") for each in names]


def _sums(names: tuple[str, ...]) -> int:
    return sum(each == "Sum" or each.endswith(" sum") for each in names)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4])


def remedy(changed: ChangedLoss, step: int, because: str) -> Remedy:
    """What to look at in the loop."""
    if changed.candidate.cause == "loss_scale":
        return Remedy(
            "Divide what torch.autograd.grad gives of a scaled loss by the loss scale before a penalty is made of it; "
            f"and go back to a checkpoint from before step {step}.",
            "def unscaled(gradients, scaler):  # of torch.autograd.grad(scaler.scale(loss), ..., create_graph=True)\n"
            "    return [each / scaler.get_scale() for each in gradients]", because,
        )  # fmt: skip
    if changed.is_sum:
        return Remedy(
            f"Take the mean again, as before step {step}; or divide the learning rate by the number of what is summed, "
            "and go back to a checkpoint from before.",
            "", because,
        )  # fmt: skip
    return Remedy(
        f"Look at which loss the loop computes from step {step} on, and at the shapes that it is given. Where it is "
        "meant to be another one, its values cannot be compared with those of before.",
        "", because,
    )  # fmt: skip


SEE_LOSS = Remedy(
    "Look whether the loss is meant to be another one from this step on: then nothing is wrong, and its values cannot "
    "be compared with those of before.",
    "",
    "the loss is computed by other operations since that step, and falls",
)
