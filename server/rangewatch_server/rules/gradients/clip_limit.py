"""Gradients are clipped to a norm that is not above 0: below it every gradient is turned round, at 0 all are lost."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import Clipping
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first time, be it over."""
    every = evidence.details(Clipping)
    for event, known in every:
        if known.max_norm <= 0:
            last = [each for other, each in every if other.rank == event.rank][-1]
            yield _finding(evidence, known, event.step, is_over=last.max_norm > 0)
            return


def _finding(evidence: Evidence, known: Clipping, step: int, *, is_over: bool) -> Finding:
    rank = only_rank(evidence)
    does = "each update goes up the loss and not down" if known.max_norm < 0 else "nothing is left of any gradient"
    return Finding(
        severity="info" if is_over else "",
        rank=rank, step=step, subject="limit",
        summary=f"{place(step, rank)}: gradients are clipped to a norm of {known.max_norm:.3g}: {does}.",
        evidence=(
            "torch.nn.utils.clip_grad_norm_ multiplies gradients by max_norm over their norm, where that is below 1, "
            "and does not look at the sign of max_norm.",
            "Cause (shown): clipping, such as a limit that is let down by a line that does not end at 0.",
        ),
        remedy=(
            Remedy(
                "Keep max_norm, the limit of the clip, above 0, wherever it comes from, and go back to a checkpoint "
                f"from before step {step}.",
                "max_norm = 1.0  # where it is scheduled: max(max_norm, 0.1)\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
                "what torch's own function was given",
            ),
        ),
        facts={"max_norm": known.max_norm, "is_over": is_over, "cause_class": "clip"},
    )  # fmt: skip


RULE = Rule(
    name="clip_limit",
    title="Gradients are clipped to a norm that is not above 0",
    severity="warning",
    explanation="`clip_grad_norm_` is given a `max_norm` below 0, which turns every gradient round, or of 0. "
    "Nothing fails at once. Needs torch's own function (torch 2.6 or newer) and a limit that is a number of the host.",
    check=check,
    explains=(
        "exploding_gradient", "headroom_trend", "loss_spike", "short_spike", "learning_lost", "loss_plateau",
        "loss_stuck", "update_ratio", "unchanged_weights",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
