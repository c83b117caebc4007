"""One rank, or one host, keeps the others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rangewatch_server.collectives import summary
from rangewatch_server.collectives.straggler import COMMUNICATION_SLOW
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

MS = 1_000


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """At most one finding, of the last steps."""
    if len(evidence.ranks) < 2 or evidence.stop <= evidence.start:
        return
    found = summary.collectives(evidence.run, evidence.start, evidence.stop)["verdict"]
    if found is None or found["cost_s"] * MS < limits["least_cost_ms"]:
        return
    yield Finding(
        rank=found["rank"], step=found["since_step"], subject=found["host"] or str(found["rank"]),
        summary=found["text"], evidence=tuple(_evidence(found)), remedy=tuple(_remedies(found)),
        facts={name: found[name] for name in ("class", "where", "cost_s", "share", "since_step", "host", "ranks")},
    )  # fmt: skip


def _evidence(found: dict[str, Any]) -> Iterator[str]:
    yield f"A step takes {found['cost_s'] * MS:.1f} ms longer for it."
    if found["rank"] is not None:
        yield f"It came last, and so waited least itself, in {found['share']:.0%} of the steps looked at."


def _remedies(found: dict[str, Any]) -> Iterator[Remedy]:
    rank = "its" if found["rank"] is None else f"rank {found['rank']}'s"
    if found["class"] == COMMUNICATION_SLOW:
        yield Remedy(
            "Test the links between the ranks' GPUs.", "torchrun --nproc-per-node=8 -m rangewatch linkcheck",
            "communication itself is slow, and no rank is late",
        )  # fmt: skip
    elif "data" in found["where"]:
        yield Remedy(
            f"Give {rank} data loader more workers, or look at what it reads from.",
            loader_with("num_workers=8, prefetch_factor=4, pin_memory=True"), "the time goes into waiting for data",
        )  # fmt: skip
    else:
        yield Remedy(
            f"Look at {rank} GPU and host: clocks, temperature, other processes on the card, the host's load.", "",
            f"the time goes into its {found['where']}",
        )  # fmt: skip


RULE = Rule(
    name="straggler",
    title="A rank keeps the others waiting",
    severity="warning",
    explanation="In a synchronous run every step takes as long as its slowest rank. Which one that is follows from how "
    "long each waits in collectives that all leave together: no clock of one host is compared with another's. It is "
    "said only when it goes on for a while and costs at least 5 % of the step.",
    check=check,
    thresholds=(Threshold("least_cost_ms", 1.0, "ms", "What it costs a step, at least."),),
    explains=("data_bound",),
    links=lambda run_id, _: (("Collectives", f"/runs/{run_id}/collectives"),),
)
