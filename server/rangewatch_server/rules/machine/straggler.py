"""One rank, or one host, keeps the others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from rangewatch_server.collectives import summary
from rangewatch_server.collectives.location import ELSEWHERE
from rangewatch_server.collectives.straggler import COMMUNICATION_SLOW
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

MS = 1_000


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """At most one finding, of the last steps."""
    if len(evidence.ranks) < 2 or evidence.stop <= evidence.start:
        return
    verdict = summary.newest_verdict(evidence.run, evidence.start, evidence.stop)
    if verdict is None or verdict["cost_s"] * MS < limits["least_cost_ms"]:
        return
    has_gpu = any(evidence.info(rank).device != "cpu" for rank in evidence.ranks)
    yield Finding(
        severity="" if _is_lasting(evidence, verdict, limits) else "info",
        rank=verdict["rank"], step=verdict["since_step"], subject=verdict["host"] or str(verdict["rank"]),
        summary=verdict["text"], evidence=tuple(_evidence(verdict)), remedy=tuple(remedies(verdict, has_gpu=has_gpu)),
        facts={name: verdict[name] for name in ("class", "where", "cost_s", "share", "since_step", "host", "ranks")},
    )  # fmt: skip


def _is_lasting(evidence: Evidence, verdict: dict[str, Any], limits: Thresholds) -> bool:
    """Whether it has gone on for long, takes much of a step, and shows in the rank's own phases where these are known.

    A scheduler that is busy with other processes keeps now one rank from its core and now another, for seconds.
    """
    steps, step_time_s = evidence.stop - verdict["since_step"], verdict["evidence"]["step_time_s"]
    is_long = steps >= limits["least_steps"] and steps * step_time_s >= limits["least_s"]
    is_much = verdict["cost_s"] >= limits["least_share"] * step_time_s
    is_unexplained = verdict["where"] == ELSEWHERE and bool(verdict["evidence"].get("phase_excess_s"))
    infos = [evidence.info(rank) for rank in evidence.ranks]
    is_loaded = is_load(verdict, {each.device for each in infos}, {each.host for each in infos})
    return is_long and is_much and not is_unexplained and not is_loaded


def is_load(verdict: dict[str, Any], devices: AbstractSet[str], hosts: AbstractSet[str]) -> bool:
    """Whether no link is to blame: the ranks are one host's CPU processes, which it gives less time to for a while."""
    return verdict["class"] == COMMUNICATION_SLOW and devices == {"cpu"} and len(hosts) == 1


def _evidence(verdict: dict[str, Any]) -> Iterator[str]:
    yield f"A step takes {verdict['cost_s'] * MS:.1f} ms longer for it."
    if verdict["rank"] is not None:
        yield f"It came last, and so waited least itself, in {verdict['share']:.0%} of the steps looked at."


def remedies(verdict: dict[str, Any], *, has_gpu: bool) -> Iterator[Remedy]:
    """What to try. `has_gpu`: any rank computes on one, as far as is known."""
    rank = "its" if verdict["rank"] is None else f"rank {verdict['rank']}'s"
    if verdict["class"] == COMMUNICATION_SLOW and not has_gpu:
        yield Remedy(
            "Look at the hosts' load: other processes, and threads for each rank; then at the network between hosts.",
            "uptime; nproc; echo $OMP_NUM_THREADS", "communication itself is slow, no rank is late, all are on CPUs",
        )  # fmt: skip
    elif verdict["class"] == COMMUNICATION_SLOW:
        yield Remedy(
            "Test the links between the ranks' GPUs.", "torchrun --nproc-per-node=8 -m rangewatch linkcheck",
            "communication itself is slow, and no rank is late",
        )  # fmt: skip
    elif "data" in verdict["where"]:
        yield Remedy(
            f"Give {rank} data loader more workers, or look at what it reads from.",
            loader_with("num_workers=8, prefetch_factor=4, pin_memory=True"), "the time goes into waiting for data",
        )  # fmt: skip
    elif not has_gpu:
        yield Remedy(
            f"Look at {rank} host: its load, other processes, and how many threads each rank has.", "",
            f"the time goes into its {verdict['where']}",
        )  # fmt: skip
    else:
        yield Remedy(
            f"Look at {rank} GPU and host: clocks, temperature, other processes on the card, the host's load.", "",
            f"the time goes into its {verdict['where']}",
        )  # fmt: skip


RULE = Rule(
    name="straggler",
    title="A rank keeps the others waiting",
    severity="warning",
    explanation="In a synchronous run every step takes as long as its slowest rank. Which one that is follows from how "
    "long each waits in collectives that all leave together: no clock of one host is compared with another's. It is "
    "said only when it goes on for a while and costs at least 5 % of the step; as info where that is not for long, not "
    "much, where none of the rank's own phases is longer, or where communication between one host's CPUs is slow: on a "
    "busy host that comes and goes.",
    check=check,
    thresholds=(
        Threshold("least_cost_ms", 1.0, "ms", "What it costs a step, at least."),
        Threshold("least_share", 0.1, "of a step", "What it costs of one, for a warning."),
        Threshold("least_steps", 64.0, "steps", "For how many it has gone on, for a warning."),
        Threshold("least_s", 5.0, "s", "For how long it has gone on, for a warning."),
    ),
    explains=("data_bound",),
    links=lambda run_id, _: (("Collectives", f"/runs/{run_id}/collectives"),),
)
