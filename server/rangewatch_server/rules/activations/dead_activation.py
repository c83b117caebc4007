"""Early warning: an activation that gives nothing but zeros."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import Array, Recent, history, last_finite, only_rank, recent, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

RELU_LIKE = re.compile(r"(squared)?relu(6|2|squared|squaredactivation)?|threshold", re.IGNORECASE)
"""Module classes whose zeros have no gradient. Leaky ones have."""

LINEAR = re.compile(
    r"(lazy)?(linear|conv\d?d?|convtranspose\dd|batchnorm\dd|layernorm|rmsnorm|groupnorm)", re.IGNORECASE
)
"""Module classes that never give zeros alone while they learn."""

LASTING = 32
"""Last points at which every element is 0."""

BEFORE = 32
"""Points at which a module that is not ReLU-like gave something else before."""

MEASURED = 3
"""Measurements of the zeros, where some elements are left."""


class Dead(msgspec.Struct, frozen=True):
    """`share` of the elements that are 0; `since`: the first step known of; `points` that were looked at."""

    tensor: int
    share: float
    since: int
    step: int
    points: int


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first in call order, with the others."""
    tensors = tensors_of(evidence, "output")
    if not len(tensors):
        return
    entries, found = evidence.tensors.entries, recent(evidence)
    is_relu = np.array([bool(RELU_LIKE.fullmatch(entries[int(each)].module)) for each in tensors], bool)
    is_linear = np.array([bool(LINEAR.fullmatch(entries[int(each)].module)) for each in tensors], bool)
    dead = {each.tensor: each for each in _nearly(evidence, tensors[is_relu], limits["least_zeros"])}
    dead |= {each.tensor: each for each in _all_zero(found, tensors[is_relu], 0)}
    dead |= {each.tensor: each for each in _all_zero(found, tensors[is_linear], BEFORE)}
    if dead:
        order = evidence.tensors.call_index
        yield _finding(evidence, sorted(dead.values(), key=lambda each: (int(order[each.tensor]), each.tensor)))


def _all_zero(found: Recent, tensors: Array, before: int) -> Iterator[Dead]:
    for tensor in tensors.tolist():
        at = np.flatnonzero(found.observed[tensor])
        zero = found.zero[tensor][at]
        if len(at) < LASTING or not zero[-LASTING:].all():
            continue
        alive = np.flatnonzero(~zero)
        if len(alive) >= before:
            since = at[alive[-1] + 1] if len(alive) else at[0]
            yield Dead(tensor, 1.0, int(found.steps[since]), int(found.steps[at[-1]]), len(at))


def _nearly(evidence: Evidence, tensors: Array, least: float) -> Iterator[Dead]:
    past = history(evidence, tensors)
    shares = past.share("zero_count")
    for tensor, share in zip(tensors.tolist(), shares, strict=True):
        last = last_finite(share, MEASURED)
        if len(last) == MEASURED and last.min() >= least:
            at = np.flatnonzero(np.isfinite(share))
            low = np.flatnonzero(share[at] < least)
            since = at[low[-1] + 1] if len(low) else at[0]
            yield Dead(tensor, float(last[-1]), int(past.starts[since]), int(past.ends[at[-1]]), len(at))


def _finding(evidence: Evidence, dead: list[Dead]) -> Finding:
    first = dead[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.step, rank)
    what = "nothing but zeros" if first.share == 1.0 else f"{first.share:.4%} zeros"
    whose = "" if len(evidence.ranks) == 1 else " on all ranks"
    more = [evidence.tensors.entries[each.tensor] for each in dead[1:]]
    return Finding(
        rank=rank, step=first.step, tensor=entry.fqn, kind=entry.kind, subject="dead",
        summary=f"{where}: {the(entry)} ({entry.module}) is dead: it has {what}.",
        evidence=(
            f"It has been so since step {first.since} or before{whose}, in {first.points} measurements.",
            "Zeros of a ReLU pass no gradient back: what lies before it does not learn."
            if RELU_LIKE.fullmatch(entry.module) else "Before, it gave other values.",
            *([f"{len(more)} more are dead: {listed(more)}."] if more else []),
        ),
        remedy=tuple(_remedies(entry)),
        facts={"zero_share": first.share, "since_step": first.since, "tensors": len(dead)},
    )  # fmt: skip


def _remedies(entry: TensorEntry) -> Iterator[Remedy]:
    because = "it rests on the share of zeros; a large negative bias or a step that was too large is the usual cause"
    yield Remedy("Lower the learning rate, and look at the bias of the layer before it.", "", because)
    if RELU_LIKE.fullmatch(entry.module) and entry.fqn:
        yield Remedy(
            "Use an activation that passes gradients for negative values.",
            f"model.set_submodule({entry.fqn!r}, torch.nn.LeakyReLU(0.01))", because,
        )  # fmt: skip


RULE = Rule(
    name="dead_activation",
    title="Dead activation",
    severity="warning",
    explanation="The output of an activation is zero in every element, or nearly: its units pass nothing on, and no "
    "gradient back, so they stay dead. Modules are known by their class; an activation that is called as a function is "
    "not seen.",
    check=check,
    thresholds=(
        Threshold("least_zeros", 0.999, "fraction", "Share of zeros from which a ReLU is dead. Half of them is usual."),
    ),
    explains=("vanishing_gradient",),
)  # fmt: skip
