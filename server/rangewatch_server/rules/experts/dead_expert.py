"""An expert that gets no tokens any more."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.experts.loads import (
    LASTING,
    Recent,
    balancing,
    named,
    over_ranks,
    recent_loads,
    since,
)
from rangewatch_server.rules.experts.without_gradient import LASTING as STEPS_IDLE
from rangewatch_server.rules.experts.without_gradient import Idle, gives_zeros, idle_experts
from rangewatch_server.rules.experts.without_gradient import since as idle_since
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

MOST_NAMED = 8
"""Experts by number."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first router with a dead expert in call order, and how many others have some; of routers
    whose tokens nobody counts, by the gradients of their experts."""
    loads = recent_loads(evidence)
    dead = [(each, experts) for each in loads if len(experts := _dead(each, limits["least_load"]))]
    if dead:
        yield _finding(evidence, dead)
    elif not loads and (idle := idle_experts(evidence)):
        yield _of_gradients(evidence, idle)


def _dead(of: Recent, least: float) -> Array:
    """Experts whose load in the last steps is below `least` times the mean."""
    tokens = of.tokens[:, of.lasting].sum(axis=1)
    return np.flatnonzero(tokens < least * tokens.mean())


def _of_gradients(evidence: Evidence, idle: list[Idle]) -> Finding:
    first, rank = idle[0], only_rank(evidence)
    step, parameter = idle_since(evidence, first)
    count = sum(len(each.experts) for each in idle)
    numbers = ", ".join(map(str, first.experts[:MOST_NAMED])) + ", ..." * (len(first.experts) > MOST_NAMED)
    what = f"expert {numbers}" if len(first.experts) == 1 else f"{len(first.experts)} experts ({numbers})"
    others = ", ".join(f"{len(each.experts)} of {each.fqn}" for each in idle[1:MOST_NAMED])
    silent = gives_zeros(evidence, first, step)
    one = f"{first.fqn}.{first.experts[0]}" if len(first.experts) == 1 else ""
    why = f"no token reaches {'it, or it is' if one else 'them, or they are'} frozen by code."
    if silent is not False:
        why = f"what {'it gives' if one else 'they give'} is exactly 0."
    return Finding(
        rank=rank, step=step, subject="idle",
        summary=f"{place(step, rank)}: {what} of the {first.count} of {first.fqn} "
        f"{'has' if one else 'have'} had a gradient of exactly 0 since: {why}",
        evidence=(
            f"In the last {STEPS_IDLE} steps and more no parameter of theirs, such as {parameter}, had a "
            "gradient other than 0, while the others of the list had one in most steps.",
            *([] if silent else [_NOT_CHOSEN]),
            *([f"So are {others}."] if others else []),
            f"Cause (likely): {_IDLE_CAUSES[silent]}",
            "What would decide: count the rows that each expert is given, and what its activation gives for them.",
        ),
        remedy=(*((_alive(one, step),) if silent is not False else ()), *(() if silent else _balanced())),
        facts={"experts": count, "routers": len(idle), "first_expert": first.experts[0],
               "since_step": step, "where": one or first.fqn, "cause_class": "dead_units"},
    )  # fmt: skip


_IDLE_CAUSES = {
    True: "dead units. Rows reach it in the steps since, and what it gives is 0 in every element, where it had not "
    "been: no unit fires for any of them.",
    None: "dead units, or a router that has collapsed. What it gives is 0 in every element since, and was not before. "
    "Whether rows reach it is not known: where experts are given a buffer of one size, that of an expert without "
    "tokens holds zeros. The kind input shows it.",
    False: "the router, which has collapsed onto few experts, as where its balancing loss is computed and not added. "
    "Against that: the experts may be frozen by code, or their outputs not used.",
}
"""By what `gives_zeros` says."""


def _alive(one: str, step: int) -> Remedy:
    return Remedy(
        f"Look at what wrote to the weights and biases of {one or 'these experts'} at step {step}, and at the size of "
        "the update right before it: units whose inputs are all negative, as of a ReLU, get no gradient and stay dead. "
        f"Go back to a checkpoint from before step {step}, or initialise them anew.",
        "", "what they give is 0 in every element, and was not before",
    )  # fmt: skip


def _balanced() -> Iterable[Remedy]:
    because = "based on the gradients of each expert's parameters"
    yield from balancing(because)
    yield Remedy(
        "See whether the balancing loss that the model returns is added to the loss.",
        "def whole(loss, balancing_loss, factor=0.01):\n    return loss + factor * balancing_loss", because,
    )  # fmt: skip


_NOT_CHOSEN = "An expert without tokens gets no gradient: it does not learn, and is not chosen again by itself."


def _finding(evidence: Evidence, dead: list[tuple[Recent, Array]]) -> Finding:
    first, experts = dead[0]
    router = first.rows.router
    rank = only_rank(evidence)
    tokens = first.tokens[experts[0]]
    step = since(first.steps, tokens == 0) if tokens[-1] == 0 else int(first.steps[first.lasting][0])
    count = sum(len(each) for _, each in dead)
    numbers = ", ".join(str(each) for each in experts[:MOST_NAMED].tolist())
    more = ", ..." if len(experts) > MOST_NAMED else ""
    what = f"expert {numbers}" if len(experts) == 1 else f"{len(experts)} experts ({numbers}{more})"
    mean = float(first.tokens[:, first.lasting].sum() / router.experts)
    got = int(first.tokens[experts][:, first.lasting].sum())
    none = "no token" if got == 0 else f"next to no token ({got:,})"
    because = "based on tokens counted by expert"
    return Finding(
        rank=rank, step=step, tensor=router.fqn, kind="output", subject="dead",
        summary=f"{place(step, rank)}: {what} of {router.fqn or 'the router'} {'gets' if len(experts) == 1 else 'get'} "
        f"{none} any more.",
        evidence=(
            f"In the last {LASTING} steps the mean of its {router.experts} experts got {mean:,.0f} tokens.",
            _NOT_CHOSEN,
            *([over] if (over := over_ranks(first)) else []),
            *([f"{count} experts of {len(dead)} routers are so: {named([each for each, _ in dead])}."]
              if len(dead) > 1 else []),
        ),
        remedy=(
            *balancing(because),
            Remedy("Look at the router's weights and bias of that expert: a row that is NaN, or frozen, never wins.",
                   "", because),
        ),
        facts={"experts": count, "routers": len(dead), "first_expert": int(experts[0])},
    )  # fmt: skip


RULE = Rule(
    name="dead_expert",
    title="Dead expert",
    severity="warning",
    explanation="A router of a mixture of experts gives an expert no tokens, step after step: its parameters are there "
    "and do not learn. The first 16 steps of a run are not judged, and neither is a router whose experts get few "
    "tokens at all. Of a router whose tokens are not counted, such as one written by hand, experts are judged by their "
    "gradients: none for 64 steps, while the others of their list have some in most steps.",
    check=check,
    thresholds=(
        Threshold(
            "least_load", 0.001, "of the mean", "An expert that gets less than this part of the mean load is dead."
        ),
    ),
    links=lambda run_id, _: (("Experts", f"/runs/{run_id}/experts"),),
    explains=("vanishing_gradient",),
)
