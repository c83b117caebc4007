"""Modules on which requires_grad was set as an attribute, which changes nothing: the parameters have it."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import module_code, module_path, place
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
            yield _finding(evidence, rank, since, known)
            return


def _finding(evidence: Evidence, rank: int, step: int, known: Optimizers) -> Finding:
    value, first = known.switched_to, known.switched[0]
    module = module_code(module_path(evidence.tensors.entries, first)) if first else "model"
    what = f"the module {first}" if first else "the whole model"
    more = f" and {len(known.switched) - 1} more modules" if len(known.switched) > 1 else ""
    so = "have requires_grad = False" if value else "have requires_grad = True, and an optimizer has them"
    return Finding(
        rank=rank, step=step, subject="switch", tensor=first or None, kind="weight" if first else None,
        summary=f"{place(step, rank)}: requires_grad = {value} was set on {what}{more}, which changes "
        f"nothing: its parameters {so}.",
        evidence=(
            "A module of torch has no such attribute: what is assigned is kept beside its parameters, each of which "
            "has its own.",
            "Cause (shown): the attribute was read. Against that: a class may use the name for something of its own.",
        ),
        remedy=(
            Remedy(
                f"Call requires_grad_({value}), with an underscore, on the module.",
                f"{module}.requires_grad_({value})",
                "the attribute and the parameters were read",
            ),
        ),
        facts={"modules": len(known.switched), "value": value, "cause_class": "no_gradient"},
    )  # fmt: skip
