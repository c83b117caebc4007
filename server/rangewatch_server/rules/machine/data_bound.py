"""Steps spend their time waiting for data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.core.text import ranks_text
from rangewatch_server.figures.phases import PHASES, RankShares, phase_shares, read_seconds
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

STEPS = 100
"""That are judged: the median over them moves with no stall of some steps, as an epoch begins with."""

MOST_RANKS = 64
MS = 1_000


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """At most one finding, of all ranks that it is so with."""
    stop = evidence.whole_stop
    start = max(evidence.start, stop - STEPS)
    ranks = evidence.ranks[:MOST_RANKS]
    if stop - start < limits["least_steps"] or not evidence.has_series("data_wait_s"):
        return
    # Ranks are read one by one only where any may be bound. One that is waits in half of its steps, in half of these
    # for as long as the median.
    longest = evidence.largest("data_wait_s", start, stop)
    if 4 * np.count_nonzero(longest * MS >= limits["least_wait_ms"]) < limits["least_steps"]:
        return
    seconds = read_seconds(evidence.run, ranks, start, stop)
    shares = phase_shares(ranks, seconds, STEPS, limits["share"])
    bound = [each for each in shares.ranks if each.is_loader_bound and each.steps >= limits["least_steps"]]
    if not bound:
        return
    at = [ranks.index(each.rank) for each in bound]
    wait_ms = MS * float(np.nanmedian(seconds[at, PHASES.index("data_wait")]))
    if wait_ms < limits["least_wait_ms"]:
        return
    yield Finding(
        rank=bound[0].rank if len(bound) == 1 else None, step=stop - 1, subject="data",
        summary=_summary(bound, len(ranks)), evidence=tuple(_evidence(bound, wait_ms)),
        remedy=(
            Remedy(
                "Let more workers load ahead, or move work from the data loader to a file made once.",
                loader_with("num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True"),
                "the time between two batches goes by outside of forward, backward and optimizer",
            ),
        ),
    )  # fmt: skip


def _summary(bound: list[RankShares], ranks: int) -> str:
    is_all = len(bound) == ranks > 1
    who = "All ranks" if is_all else ranks_text(each.rank for each in bound).capitalize()
    share = float(np.median([each.shares["data_wait"] or 0.0 for each in bound]))
    return f"{who}: {share:.0%} of the step goes by waiting for data."


def _evidence(bound: list[RankShares], wait_ms: float) -> Iterator[str]:
    yield f"The median wait for a batch is {wait_ms:.1f} ms over the last {max(each.steps for each in bound)} steps."


RULE = Rule(
    name="data_bound",
    title="Waiting for data",
    severity="warning",
    explanation="The training waits for its data loader for a good part of each step. When one rank's loader stalls "
    "for long, the others' collectives run into their time limit, and it looks like a fault of communication.",
    check=check,
    thresholds=(
        Threshold("share", 0.3, "of the step", "More than this share of the median step."),
        Threshold("least_wait_ms", 5.0, "ms", "The median wait, at least."),
        Threshold("least_steps", 50, "steps", "So many steps are needed."),
    ),
)
