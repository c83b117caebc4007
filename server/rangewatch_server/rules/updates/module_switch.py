"""Modules on which requires_grad was set as an attribute, which changes nothing: the parameters have it."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy


def module_switch(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding: since when it was seen so, where it is so still."""
    newest = {event.rank: known for event, known in evidence.details(Optimizers)}
    for rank in sorted(newest):
        known = newest[rank]
        if known.switched:
            since = min(
                event.step for event, each in evidence.details(Optimizers, rank) if each.switched == known.switched
            )
            yield _finding(rank, since, known)
            return


def _finding(rank: int, step: int, known: Optimizers) -> Finding:
    value, first = known.switched_to, known.switched[0]
    more = f" and {len(known.switched) - 1} more modules" if len(known.switched) > 1 else ""
    so = "are frozen all the same: no gradient is computed for them" if value else "are trained all the same"
    return Finding(
        rank=rank, step=step, subject="switch", tensor=first, kind="weight",
        summary=f"{place(step, rank)}: requires_grad = {value} was set on the module {first}{more}, which changes "
        f"nothing: its parameters {so}.",
        evidence=(
            "A module of torch has no such attribute: what is assigned is kept beside its parameters, each of which "
            "has its own.",
            "Cause (shown): the attribute was read. Against that: a class may use the name for something of its own.",
        ),
        remedy=(
            Remedy(
                f"Call requires_grad_({value}), with an underscore, on the module.",
                f"model.get_submodule({first!r}).requires_grad_({value})",
                "the attribute and the parameters were read",
            ),
        ),
        facts={"modules": len(known.switched), "value": value, "cause_class": "no_gradient"},
    )  # fmt: skip
