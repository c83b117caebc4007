"""Early warning: gradients that nobody zeroes, so that each update goes by the sum of all since then."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One finding, of the lowest rank on which it is so: the first spell that was reported, be it over."""
    every = list(evidence.details(Optimizers))
    for event, optimizers in every:
        if optimizers.kept_gradient_steps:
            last = [each for other, each in every if other.rank == event.rank][-1]
            yield _finding(evidence, event.rank, event.step, optimizers, is_over=not last.kept_gradient_steps)
            return


def _finding(evidence: Evidence, rank: int, step: int, optimizers: Optimizers, *, is_over: bool) -> Finding:
    since = step - optimizers.kept_gradient_steps + 1
    gradients = tensors_of(evidence, "grad")
    entry = evidence.tensors.entries[int(gradients[0])] if len(gradients) else None
    until = "; later they were zeroed again" if is_over else ""
    return Finding(
        rank=rank, step=since, tensor=None if entry is None else entry.fqn, kind=None if entry is None else "grad",
        subject="kept",
        summary=f"{place(since, rank)}: since then each update ({', '.join(optimizers.classes)}) goes by the sum of "
        f"all gradients, which nothing zeroes in between{until}.",
        evidence=(
            f"In {optimizers.kept_gradient_steps} updates in a row, up to step {step}, the backward added to the "
            "gradient that the update before had used. Torch's count of changes in place says so: nothing else wrote "
            "to it.",
            "Micro-steps before one update are not counted as such.",
        ),
        remedy=(
            Remedy(
                "Call optimizer.zero_grad() once after each optimizer.step(), in all branches of the loop. Where the "
                "sum is meant, nothing is wrong.",
                "optimizer.step()\noptimizer.zero_grad(set_to_none=True)",
                "gradients were carried over from one update to the next",
            ),
        ),
        facts={
            "since_step": since, "seen_step": step, "updates": optimizers.kept_gradient_steps, "is_over": is_over,
            "cause_class": "optimizer",
        },
    )  # fmt: skip


RULE = Rule(
    name="gradients_not_zeroed",
    title="Gradients are not zeroed",
    severity="warning",
    explanation="For 12 updates in a row the backward added to the gradients that the update before had used, as when "
    "`zero_grad` is called in one branch of the loop only. Each update goes by the sum of all gradients since then: "
    "updates grow, point to the past, and the loss follows. The agent reports it at any level, without reading a "
    "gradient.",
    check=check,
    explains=("exploding_gradient", "loss_spike", "short_spike", "update_ratio", "loss_plateau"),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)
