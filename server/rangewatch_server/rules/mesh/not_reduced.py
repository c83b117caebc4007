"""Updates that are made for a while though nobody reduces the gradients over ranks that hold the same parameters."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch.wire.events import NotReduced
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    newest = {event.rank: details for event, details in evidence.details(NotReduced)}
    going_on = {rank: details for rank, details in newest.items() if details.steps}
    if not going_on:
        return
    first = min(going_on, key=lambda rank: (going_on[rank].first, rank))
    found, ranks = going_on[first], tuple(sorted(going_on))
    along = f" along {' and '.join(found.axes)}" if found.axes else ""
    yield Finding(
        rank=None if len(ranks) > 1 else first, step=found.first, tensor=found.parameter, kind="grad", subject="switch",
        summary=f"Step {found.first}: {ranks_text(ranks)} update parameters that they hold alike{along}, such as "
        f"{found.parameter}, and do not reduce their gradients: {found.reason}.",
        evidence=(
            "It has been so in each reading since, so that the ranks train different models. They are not compared "
            "meanwhile: some algorithms, such as local SGD, mean that.",
        ),
        remedy=(
            Remedy(
                "Switch the synchronisation on again for the last backward before each update.",
                "for module in model.modules():  # FSDP2; with DDP leave no_sync() before that backward\n"
                "    if hasattr(module, 'set_requires_gradient_sync'):\n"
                "        module.set_requires_gradient_sync(True)\n"
                "        module.set_requires_all_reduce(True)",
                "the wrapper's own switch was read right before the updates",
            ),
        ),
        facts={"axes": found.axes, "ranks": list(ranks), "since_step": found.first},
    )  # fmt: skip


RULE = Rule(
    name="gradients_not_reduced",
    title="Gradients are not reduced",
    severity="warning",
    explanation="Ranks that hold the same parameters must update them by the same gradients. DistributedDataParallel "
    "and FSDP2 have a switch that leaves out the reduction, for gradient accumulation; where it stays off when the "
    "optimizer steps, each rank trains a model of its own, and nothing fails.",
    check=check,
    explains=("replica_mismatch",),
)
