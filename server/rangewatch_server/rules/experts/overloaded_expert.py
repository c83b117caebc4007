"""An expert that gets far more tokens than the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.experts.loads import LASTING, Recent, balancing, named, over_ranks, recent_loads, since
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Rule, Threshold, Thresholds

NEARLY_ALL = 0.9
"""Of all tokens: with few experts no load is many times the mean."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the most overloaded expert of any router."""
    found = [(load, each) for each in recent_loads(evidence) if (load := _overload(each, limits)) is not None]
    if found:
        worst = max(range(len(found)), key=lambda at: (found[at][0][1], -at))
        yield _finding(evidence, *found[worst], [each for _, each in found], limits)


def _is_over(of: Recent, expert: int, limits: Thresholds) -> Array:
    """(n,) at which steps it gets so much."""
    share = of.share[expert]
    mean = of.tokens.mean(axis=0) / np.maximum(of.routed, 1)
    return (share >= limits["least_share"]) & ((share >= limits["times"] * mean) | (share >= NEARLY_ALL))


def _overload(of: Recent, limits: Thresholds) -> tuple[int, float] | None:
    """The expert, and its load over the mean in the last steps; None where none is overloaded at all of them."""
    if of.rows.router.experts <= 2 * max(of.rows.router.top_k, 1):
        return None
    tokens = of.tokens[:, of.lasting].sum(axis=1)
    expert = int(tokens.argmax())
    if not _is_over(of, expert, limits)[of.lasting].all():
        return None
    return expert, float(tokens[expert] / tokens.mean())


def _finding(
    evidence: Evidence, load: tuple[int, float], of: Recent, all_of: list[Recent], limits: Thresholds
) -> Finding:
    expert, ratio = load
    router = of.rows.router
    rank = only_rank(evidence)
    step = since(of.steps, _is_over(of, expert, limits))
    share = float(of.tokens[expert, of.lasting].sum() / of.routed[of.lasting].sum())
    because = "based on tokens counted by expert"
    return Finding(
        rank=rank, step=step, tensor=router.fqn, kind="output", subject="overloaded",
        summary=f"{place(step, rank)}: expert {expert} of {router.fqn or 'the router'} is overloaded: {share:.0%} "
        f"of all tokens go to it, {ratio:.1f} times the mean.",
        evidence=(
            f"It has been so for the last {LASTING} steps or more; MaxVio, the largest load over the mean less 1, is "
            f"{ratio - 1:.1f}.",
            "With a capacity its tokens are dropped; with expert parallelism all ranks wait for the one that has it.",
            *([text] if (text := over_ranks(of)) else []),
            *([f"{len(all_of)} routers are so: {named(all_of)}."] if len(all_of) > 1 else []),
        ),
        remedy=balancing(because),
        facts={"expert": expert, "load_over_mean": ratio, "token_share": share, "routers": len(all_of)},
    )  # fmt: skip


RULE = Rule(
    name="overloaded_expert",
    title="Overloaded expert",
    severity="warning",
    explanation="One expert of a router gets most of the tokens, step after step. It is the slowest, its tokens are "
    "the first to be dropped, and the others learn little. The first 16 steps of a run are not judged.",
    check=check,
    thresholds=(
        Threshold("times", 4.0, "times the mean", "Load from which an expert is overloaded, or 0.9 of all tokens."),
        Threshold("least_share", 0.5, "fraction", "Least share of all tokens that it must get."),
    ),
    links=lambda run_id, _: (("Experts", f"/runs/{run_id}/experts"),),
)
