"""A loss that is computed by other operations from the very step of its jump on."""

from __future__ import annotations

import msgspec

from rangewatch.wire.events import LossChanged
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.rule import Remedy

NAME = "how the loss is computed"

TEST = "Compute the loss of one batch as it was computed before that step, and as it is since. Either may be meant."

_MEANS = {"Sum": "Mean", "NllLoss2D": "NllLoss"}
"""Operations that differ by what they are of, not by what they compute, or by a mean in place of a sum."""


class ChangedLoss(msgspec.Struct, frozen=True):
    """`is_sum`: a sum has taken the place of a mean. `is_term`: something is added to what it was."""

    candidate: Candidate
    is_sum: bool
    is_term: bool


def of_changed_loss(evidence: Evidence, step: int) -> ChangedLoss | None:
    """None where the loss is computed as before, or that is not known."""
    known = next((known for event, known in evidence.details(LossChanged) if event.step == step), None)
    if known is None or not known.before or not known.after:
        return None
    before, after = (tuple(_MEANS.get(each, each) for each in names) for names in (known.before, known.after))
    alike = [each.replace(" sum", " mean") for each in before] == [each.replace(" sum", " mean") for each in after]
    is_sum = alike and _sums(known.after) > _sums(known.before)
    is_term = not alike and after[0] == "Add" and after.count("Add") > before.count("Add")
    what = " a sum has taken the place of a mean." if is_sum else " something is added to what it was." * is_term
    text = (
        "From that very step on the loss is computed by other operations than at any step before, as its graph says: "
        f"{_chain(known.after)}, where it was {_chain(known.before)}{':' if what else '.'}{what}"
    )
    cause = "regularization" if is_term else "forward_arithmetic"
    return ChangedLoss(Candidate(cause, 0.93, (text,)), is_sum, is_term)


def _sums(names: tuple[str, ...]) -> int:
    return sum(each == "Sum" or each.endswith(" sum") for each in names)


def _chain(names: tuple[str, ...]) -> str:
    return " of ".join(names[:4])


def remedy(changed: ChangedLoss, step: int, because: str) -> Remedy:
    """What to look at in the loop."""
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
