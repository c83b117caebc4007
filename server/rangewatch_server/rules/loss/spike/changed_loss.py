"""A loss that is computed by other operations from the very step of its jump on."""

from __future__ import annotations

import msgspec

from rangewatch.wire.events import LossChanged
from rangewatch_server.rules.evidence import Evidence
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
    is_term = known.after[0] == "Add" and known.before[0] in known.after[1:3]
    what = " A sum has taken the place of a mean." if is_sum else " Something is added to what it was." * is_term
    text = (
        "From that very step on the loss is computed by other operations than at any step before in this process, as "
        f"its graph says. Nearest to it are {_listed(known.after)}, and were {_listed(known.before)}.{what}"
    )
    cause = "regularization" if is_term else "forward_arithmetic"
    return ChangedLoss(Candidate(cause, 0.93, (text,)), is_sum, is_term)


def _as_means(names: tuple[str, ...]) -> list[str]:
    return ["Mean" if each == "Sum" else each.replace(" sum", " mean") for each in names]


def _sums(names: tuple[str, ...]) -> int:
    return sum(each == "Sum" or each.endswith(" sum") for each in names)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4])


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


SEE_LOSS = Remedy(
    "Look whether the loss is meant to be another one from this step on: then nothing is wrong, and its values cannot "
    "be compared with those of before.",
    "",
    "the loss is computed by other operations since that step, and falls",
)
