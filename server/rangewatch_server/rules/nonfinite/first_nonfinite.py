"""Where NaN or Inf came from: the first tensor that held one, what made it, and how it went on from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.case import Bad, Case, StepView
from rangewatch_server.rules.nonfinite.origin import Origin, origin_of
from rangewatch_server.rules.nonfinite.preceding_events import Before, before
from rangewatch_server.rules.nonfinite.remedies import remedies
from rangewatch_server.rules.nonfinite.search import Spell, first_bad, first_beside, spells, view_of
from rangewatch_server.rules.nonfinite.spread import path_of
from rangewatch_server.rules.nonfinite.tensor_phrases import counts, name_of, range_words
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

__all__ = ["RULE", "Bad", "first_bad"]


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """The first that stayed; where each went again, the first of all. Beside Inf that goes nowhere also what is bad."""
    found = spells(evidence)
    if not found:
        return
    spell = next((each for each in found if each.clean_step is None), found[0])
    view = view_of(evidence, spell.step)
    if view is None:
        return
    is_contained = spell.clean_step is None and spell.last_step > spell.step and view.is_contained()
    severity = "warning" if spell.clean_step is not None or is_contained else "critical"
    yield _finding(view, spell, severity, found)
    if is_contained:
        yield from _beside(evidence, view)


def _beside(evidence: Evidence, contained: StepView) -> Iterator[Finding]:
    """What else was bad, later than Inf that went nowhere."""
    step = first_beside(evidence, contained.is_bad)
    view = None if step is None else view_of(evidence, step, contained.is_bad)
    if step is not None and view is not None:
        spell = Spell(step, None, step)
        yield _finding(view, spell, "critical", [spell])


def _finding(view: StepView, spell: Spell, severity: str, spells: list[Spell]) -> Finding:
    bad = view.first()
    assert bad is not None
    case = Case(view.evidence, bad, view)
    entry, origin = case.entry, origin_of(case)
    earlier, later = spells[: spells.index(spell)], spells[spells.index(spell) + 1 :]
    is_alone = severity == "warning" and spell.clean_step is None
    cause = None if is_alone else before(case, origin)
    place = f"Step {bad.step}, rank {bad.rank}: {the(entry)}"
    return Finding(
        severity=severity, rank=bad.rank, step=bad.step, tensor=entry.fqn, kind=entry.kind,
        subject="contained" if is_alone else "first",
        summary=f"{place} is the first to hold {_what(bad)}{_clause(origin, case)}"
        f"{'' if cause is None else cause.clause}.",
        evidence=tuple(_evidence(case, origin, cause, earlier, is_alone=is_alone)),
        path=tuple(path_of(view, bad, spell, later)),
        remedy=tuple(_remedies(case, origin, cause, is_alone=is_alone)),
        facts={
            "nan_count": bad.nan_count, "inf_count": bad.inf_count, "numel": bad.numel, "dtype": entry.dtype,
            "origin": origin.kind, "cause": origin.cause, "where": origin.where, "recovered_step": spell.clean_step,
            "before": "" if cause is None else cause.kind, **({} if cause is None else cause.facts),
        },
    )  # fmt: skip


def _what(bad: Bad) -> str:
    return "NaN" if bad.nan_count else "Inf"


def _clause(origin: Origin, case: Case) -> str:
    if origin.kind in ("weight", "optimizer") and case.entry.kind == "output":
        return f"; its weight {origin.where} held it already"
    return {
        "data": "; it came with the batch" if case.entry.fqn or case.entry.kind != "input" else "",
        "between": f"; code in the forward of {name_of(origin.where)} made it",
        "loss": "; the loss was not finite",
    }.get(origin.kind, "")


def _evidence(
    case: Case, origin: Origin, cause: Before | None, earlier: list[Spell], *, is_alone: bool
) -> Iterator[str]:
    yield f"It held {counts(case.bad)} ({case.entry.dtype})."
    if cause is not None:
        yield cause.reported
    yield from origin.reported
    largest = case.amax_before(case.bad.tensor)
    if largest is not None and not case.is_loaded:
        words = range_words(case.entry.dtype, largest)
        growth = case.growth
        grew = "" if growth is None else f", growing {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"
        yield f"In the step before it had {words}{grew}."
    rate = case.evidence.series("lr", case.bad.step, case.bad.step + 1, case.bad.rank)
    if cause is None and len(rate) and np.isfinite(rate[0]):
        yield f"The learning rate that was logged for this step is {rate[0]:.3g}."
    if is_alone:
        yield "No NaN, no bad gradient and no bad loss followed at that step: it went nowhere, as a mask's Inf."
    if earlier:
        step, clean = earlier[0].step, earlier[0].clean_step
        yield f"It was not the first time: step {step} held NaN or Inf too, and step {clean} no more."


def _remedies(case: Case, origin: Origin, cause: Before | None, *, is_alone: bool) -> Iterator[Remedy]:
    if cause is not None:
        yield cause.remedy
        if case.is_loaded and origin.kind == "weight":
            return
    if is_alone:
        yield Remedy(
            "If this Inf is meant, say so, and it is no longer counted.",
            f"rangewatch.attach(model, optimizer, allow_inf=[{case.entry.fqn!r}])",
            "nothing that was recorded took it over",
        )  # fmt: skip
    if not is_alone or origin.cause:
        yield from remedies(case, origin)


RULE = Rule(
    name="first_nonfinite",
    title="NaN or Inf",
    severity="critical",
    explanation="A tensor held NaN or Inf. What is computed from it is so too, as a rule: the outputs after it, the "
    "loss, the gradients, and with the next update the weights, from which a run does not recover. The first tensor "
    "that held one, in the order of steps and calls, is where to look; what came after it is its consequence.",
    check=check,
    explains=("loss_nonfinite", "loss_scale_collapse", "loss_spike", "exploding_gradient"),
)
