"""A router that gives all tokens to the same experts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.experts.loads import Recent, balancing, named, over_ranks, recent_loads, since
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first router in call order that has collapsed, with the others."""
    found = [each for each in recent_loads(evidence) if _has_collapsed(each, limits["least_share"])]
    if found:
        yield _finding(evidence, found, limits["least_share"])


def _favoured(of: Recent) -> Array:
    """The `top_k` experts that got most in the last steps, the first the most."""
    tokens = of.tokens[:, of.lasting].sum(axis=1)
    return np.argsort(-tokens, kind="stable")[: max(1, of.rows.router.top_k)]


def _share(of: Recent, experts: Array) -> Array:
    """(n,) of what the router gave, the part that went to these experts."""
    return np.asarray(of.tokens[experts].sum(axis=0) / np.maximum(of.tokens.sum(axis=0), 1))


def _has_collapsed(of: Recent, least: float) -> bool:
    if of.rows.router.experts < 2 * max(1, of.rows.router.top_k):
        return False
    return bool((_share(of, _favoured(of))[of.lasting] >= least).all())


def _finding(evidence: Evidence, found: list[Recent], least: float) -> Finding:
    first = found[0]
    router, favoured = first.rows.router, _favoured(first)
    rank = only_rank(evidence)
    share = _share(first, favoured)
    step = since(first.steps, share >= least)
    who = f"expert {favoured[0]} takes" if len(favoured) == 1 else f"the same {len(favoured)} experts take"
    because = "based on tokens counted by expert"
    return Finding(
        rank=rank, step=step, tensor=router.fqn, kind="output", subject="collapse",
        summary=f"{place(step, rank)}: {router.fqn or 'the router'} has collapsed: {who} "
        f"{float(share[first.lasting].mean()):.0%} of all tokens.",
        evidence=(
            f"It chooses {', '.join(str(each) for each in favoured[:8].tolist())} of {router.experts} experts: the "
            "others learn nothing, and the model is as large as these alone.",
            *([text] if (text := over_ranks(first)) else []),
            *([f"{len(found)} routers have collapsed: {named(found)}."] if len(found) > 1 else []),
        ),
        remedy=(
            *balancing(because),
            Remedy(
                "Go back to a checkpoint from before it, with a lower learning rate for the router: experts that were "
                "not chosen do not come back by themselves.", "", because,
            ),
        ),
        facts={"token_share": float(share[first.lasting].mean()), "routers": len(found), "expert": int(favoured[0])},
    )  # fmt: skip


RULE = Rule(
    name="expert_collapse",
    title="Routing has collapsed",
    severity="critical",
    explanation="A router of a mixture of experts gives all tokens to the same few experts, as many as each token has: "
    "there is nothing left to choose. The first 16 steps of a run are not judged.",
    check=check,
    thresholds=(
        Threshold("least_share", 0.95, "fraction", "Of what the router gives, the part that the same experts take."),
    ),
    explains=("dead_expert", "overloaded_expert"),
    links=lambda run_id, _: (("Experts", f"/runs/{run_id}/experts"),),
)
