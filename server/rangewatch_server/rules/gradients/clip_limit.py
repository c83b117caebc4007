"""Gradients are clipped to a norm that is not above 0: below it every gradient is turned round, at 0 all are lost. Or
they are clipped where there are none: before the backward.
"""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import Clipping
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of each: the first time, be it over."""
    every = evidence.details(Clipping)
    early = next(((event, known) for event, known in every if known.early_steps), None)
    if early is not None:
        newest = [each for other, each in every if other.rank == early[0].rank][-1]
        yield _early(evidence, early[1], early[0].step, is_over=not newest.early_steps)
    for event, known in every:
        if known.max_norm <= 0:
            last = [each for other, each in every if other.rank == event.rank][-1]
            yield _finding(evidence, known, event.step, is_over=last.max_norm > 0)
            return


def _early(evidence: Evidence, known: Clipping, step: int, *, is_over: bool) -> Finding:
    rank, since = only_rank(evidence), step + 1 - known.early_steps
    return Finding(
        severity="info" if is_over else "",
        rank=rank, step=since, subject="early",
        summary=f"{place(since, rank)}: gradients are clipped before the backward computes them: the clip to "
        f"{known.max_norm:.3g} changes nothing.",
        evidence=(
            f"In {known.early_steps} steps in a row, up to step {step}, torch.nn.utils.clip_grad_norm_ was called when "
            "no backward had begun since the step before ended, and then there was one.",
            "Cause (shown): clipping. A gradient that is far too large goes into the update whole.",
        ),
        remedy=(
            Remedy(
                "Clip between the backward and the step.",
                "optimizer.zero_grad()\n"
                "loss.backward()\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
                "optimizer.step()",
                "the calls of the clip and of the backward, in their order",
            ),
        ),
        facts={"max_norm": known.max_norm, "is_over": is_over, "since_step": since, "cause_class": "clip"},
    )  # fmt: skip


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
    title="The clip of gradients cannot work",
    severity="warning",
    explanation="`clip_grad_norm_` is given a `max_norm` below 0, which turns every gradient round, or of 0. Or it is "
    "called before the backward, when there is nothing to clip. Nothing fails at once. Needs torch's own function "
    "(torch 2.6 or newer) and a limit that is a number of the host.",
    check=check,
    explains=(
        "exploding_gradient", "headroom_trend", "loss_spike", "short_spike", "learning_lost", "loss_plateau",
        "loss_stuck", "update_ratio", "unchanged_weights",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)  # fmt: skip
