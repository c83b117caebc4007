"""Where NaN or Inf came from: the first tensor that held one, what had happened just before (the learning rate had
risen, or a checkpoint had been loaded), what made it, and how it went on: through the step, collectives, weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from rangewatch_server.collectives.reader import bucket_names
from rangewatch_server.core.text import ranks_text
from rangewatch_server.numerics.pyramid import RANGES, level_for
from rangewatch_server.rules.batch_rows import row_sentences
from rangewatch_server.rules.evidence import BACKWARD, Evidence
from rangewatch_server.rules.loss.learning_rate import odd_rate
from rangewatch_server.rules.loss.series import RATES, loss_name
from rangewatch_server.rules.loss.spike import cause as spike_cause
from rangewatch_server.rules.nonfinite import causes, operations
from rangewatch_server.rules.nonfinite.case import HISTORY, Bad, Case, StepView
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.nonfinite.code_snippets import CHECKPOINT, lower_rate
from rangewatch_server.rules.nonfinite.optimizer import optimizer_of
from rangewatch_server.rules.nonfinite.origin import Origin, origin_of
from rangewatch_server.rules.nonfinite.remedies import remedies
from rangewatch_server.rules.nonfinite.search import (
    COLUMNS,
    Spell,
    bad_ranks,
    first_bad,
    first_beside,
    is_skipped,
    spells,
    view_of,
)
from rangewatch_server.rules.nonfinite.tensor_phrases import counts, name_of, range_text, several
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

FOLLOWING = (
    "vanishing_gradient", "dead_activation", "saturated_activation", "unchanged_weights", "update_ratio",
    "underflow_rising", "gradient_underflow", "headroom_trend", "attention_logits",
)  # fmt: skip
"""Rules on what gradients, outputs and weights are like after a NaN or Inf."""

RISE = 1.5
"""How many times as high as ever in the steps before it must be: a warm-up rises by less from its third step on."""

OF_A_JUMP = ("weight", "backward_arithmetic")
"""Causes of a jump of the loss that say more than a loss that had blown up does by itself."""

LEAST_BEFORE = 3
"""Values before it that are known."""

SOON = 8
"""Steps after it in which NaN or Inf is its doing."""

_NOT_OF_THE_RATE = ("masked", "eps", "written", "flipped", "given", "outside")


class Before(msgspec.Struct, frozen=True):
    """`kind`: "learning_rate" or "checkpoint". `clause` ends the summary; `reported` is a sentence. `facts`: see there;
    its `cause_step` is where it began.
    """

    kind: str
    clause: str
    reported: str
    remedy: Remedy
    facts: Mapping[str, Any]


def before(case: Case, origin: Origin) -> Before | None:
    """What explains it, if anything that is recorded does."""
    if case.is_restart and (loaded := _loaded(case, origin)) is not None:
        return loaded
    return None if origin.kind == "data" or origin.cause in _NOT_OF_THE_RATE else _risen(case)


def _loaded(case: Case, origin: Origin) -> Before | None:
    start = case.process_start
    optimizer = optimizer_of(case, origin.where)
    is_given_so = optimizer is not None and optimizer.gradient is not None
    if origin.cause == "state" and not is_given_so and case.bad.step == start + 1:
        return _checkpoint(
            "",
            f"This process started at step {start}, one step before: the optimizer's state came with the checkpoint.",
        )
    if not case.is_loaded:
        return None
    first = "already at the first step after this process started"
    if origin.kind == "weight":
        reported = first.removeprefix("already") if case.entry.kind == "output" else f"; {first}"
        return _checkpoint(
            f"{reported}: the checkpoint that was loaded holds it",
            f"It was so {first}, step {start}: the checkpoint that was loaded holds it.",
        )
    if origin.kind == "forward" and case.weights is None and case.step_of_finite_weights is None:
        return _checkpoint(
            f"; {first}", f"It was so {first}, step {start}: the checkpoint that was loaded may hold it in its weights."
        )
    return None


def _checkpoint(clause: str, reported: str) -> Before:
    text = "Look which tensors of the checkpoint are not finite, and start from an older one in which all are."
    return Before("checkpoint", clause, reported, Remedy(text, CHECKPOINT, "it was so as soon as it was loaded"), {})


def _risen(case: Case) -> Before | None:
    for name in RATES:
        steps, rates = _rates(case, name)
        for at in reversed(range(LEAST_BEFORE, len(steps))):
            highest = rates[:at].max()
            if case.bad.step - steps[at] > SOON:
                break
            if highest > 0 and rates[at] >= RISE * highest:
                return _rise(case, int(steps[at]), float(rates[at - 1]), float(rates[at]))
    return None


def _rates(case: Case, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) steps and values that were logged and could have had a part in it: an update is of its own step's rate."""
    start = max(case.evidence.start, case.bad.step - HISTORY)
    stop = case.bad.step + (case.entry.kind == "update")
    rates = case.evidence.series(name, start, stop, case.bad.rank)
    if not np.isfinite(rates).any():
        rates = case.evidence.series(name, start, stop)  # often rank 0 alone logs it
    known = np.flatnonzero(np.isfinite(rates))
    return start + known, rates[known]


def _rise(case: Case, step: int, low: float, high: float) -> Before:
    ago = case.bad.step - step
    when = f"{ago} step{'' if ago == 1 else 's'} before" if ago else "the same step"
    grouped = odd_rate(case.evidence, case.bad.step)
    details: dict[str, Any] = {"lr_before": low, "lr": high, "cause_step": step}
    whose = ""
    if grouped is not None and grouped.step == step and grouped.group is not None:  # what is logged is the largest
        low, high = grouped.low, grouped.high
        whose = f" of parameter group {grouped.group}{f' ({grouped.first})' * bool(grouped.first)}"
        details |= {"lr_before": low, "lr": high, "group": grouped.group, "where": grouped.first}
    rose = f"the learning rate{whose} rose from {low:.3g} to {high:.3g} at step {step}, {when}"
    remedy = Remedy(
        f"Set the learning rate{whose} back to {low:.3g}, or raise it in small steps.",
        f"optimizer.param_groups[{details['group']}]['lr'] *= {low / high:.3g}" if whose else lower_rate(low / high),
        f"it had been {high / low:.3g} times as high for {ago} step{'' if ago == 1 else 's'}",
    )  # fmt: skip
    return Before("learning_rate", f"; {rose}", f"{rose[0].upper()}{rose[1:]}.", remedy, details)


__all__ = ["RULE", "Bad", "first_bad"]


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """The first that stayed; where each went again, the first of all. Beside Inf that goes nowhere also what is bad."""
    all_spells = spells(evidence)
    if not all_spells:
        return
    spell = next((each for each in all_spells if each.clean_step is None), all_spells[0])
    view = view_of(evidence, spell.step)
    if view is None:
        return
    is_contained = spell.clean_step is None and spell.last_step > spell.step and view.is_contained()
    severity = "warning" if spell.clean_step is not None or is_contained else "critical"
    finding = _finding(view, spell, severity, all_spells)
    yield structs.replace(finding, severity="info") if severity == "warning" and _is_mask(view) else finding
    if is_contained:
        yield from _beside(evidence, view)


def _is_mask(view: StepView) -> bool:
    """Whether it held -Inf alone, as what was given it says, and nothing took it over: a mask that came later."""
    bad = view.first()
    inputs = () if bad is None else Case(view.evidence, bad, view).bad_inputs
    return bool(inputs) and all(each.is_mask for each in inputs) and view.is_contained()


def _is_overflow(case: Case, origin: Origin) -> bool:
    """Whether Inf that nothing took over is no mask's: masks that are added are -Inf, and lie far from the limit."""
    is_positive = case.context is not None and case.context.has_positive_inf
    return origin.kind == "forward" and (origin.cause == "range" or bool(is_positive))


def _beside(evidence: Evidence, contained: StepView) -> Iterator[Finding]:
    """What else was bad, later than Inf that went nowhere."""
    step = first_beside(evidence, contained.is_bad)
    view = None if step is None else view_of(evidence, step, contained.is_bad)
    if step is not None and view is not None:
        spell = Spell(step, None, step)
        yield _finding(view, spell, "critical", [spell])


def _of_a_jump(case: Case) -> Candidate | None:
    """What the loss had jumped for right before, where that says more than that updates were too large."""
    name, step = loss_name(case.evidence), case.bad.step
    if name is None:
        return None
    low = max(case.evidence.start, step - SOON)
    usual = causes.loss_ratio(case)
    if usual is None or usual[0] < causes.BLOWN:
        return None
    values = case.evidence.series(name, low, step, case.bad.rank)
    high = np.flatnonzero(np.isfinite(values) & (np.abs(values) >= causes.BLOWN * usual[2]))
    if not len(high) or not high[0]:
        return None
    known = spike_cause.explained(case.evidence, name, low + int(high[0]), usual[2])
    if known.cause not in OF_A_JUMP or known.weights[known.cause] < causes.LIKELY:
        return None
    text = f"At step {low + int(high[0])} the loss had jumped. {known.reason}"
    return Candidate(known.cause, known.weights[known.cause], (text,), where=known.tensor or "")


def _finding(view: StepView, spell: Spell, severity: str, spells: list[Spell]) -> Finding:
    bad = view.first()
    assert bad is not None
    case = Case(view.evidence, bad, view)
    entry, origin = case.entry, origin_of(case)
    earlier, later = spells[: spells.index(spell)], spells[spells.index(spell) + 1 :]
    is_alone = severity == "warning" and spell.clean_step is None
    is_meant = is_alone and not _is_overflow(case, origin)
    cause = None if is_alone else before(case, origin)
    rate_rose = cause is not None and cause.kind == "learning_rate"
    jumped = _of_a_jump(case)
    best, *others = causes.candidates(case, origin, rate_rose=rate_rose, jumped=jumped)
    clause = "" if cause is None else cause.clause
    if not is_alone and best.cause in _CLAUSES and best.cause not in clause and not clause:
        is_known = best.cause != "data" or best.sureness == "shown"  # of a batch that was not read nothing is stated
        is_new = origin.kind not in ("data", "sent", "reduction") and origin.cause not in ("masked", "given", "outside")
        clause = _CLAUSES[best.cause] if is_known and is_new else ""
    is_empty = origin.cause == "empty" and best.cause in ("mask", "data")
    ending = "; nothing of this batch counted" if is_empty else clause
    place = f"Step {bad.step}, rank {bad.rank}: {the(entry)}"
    since = f" since step {earlier[-1].clean_step}" if earlier else ""
    return Finding(
        severity=severity, rank=bad.rank, step=bad.step, tensor=entry.fqn, kind=entry.kind,
        subject="contained" if is_alone else "first",
        summary=f"{place} is the first to hold {_what(bad)}{since}{_clause(origin, case)}"
        f"{ending}.",
        evidence=(
            *_evidence(case, origin, cause, earlier, is_alone=is_alone, is_meant=is_meant),
            *(() if is_meant else causes.sentences(best, others, causes.deciding_test(best, case, origin))),
            *(() if is_alone else row_sentences(case.evidence.run, (bad.rank,), bad.step)),
        ),
        path=tuple(path_of(view, bad, spell, later)),
        remedy=tuple(_remedies(case, origin, cause, best, is_alone=is_alone, is_meant=is_meant)),
        facts={
            "nan_count": bad.nan_count, "inf_count": bad.inf_count, "numel": bad.numel, "dtype": entry.dtype,
            "origin": origin.kind, "cause": origin.cause, "where": best.where or origin.where,
            "recovered_step": spell.clean_step,
            "cause_class": "mask" if is_meant else best.cause, "sureness": best.sureness,
            "candidates": {each.cause: each.weight for each in (best, *others)},
            "of_magnitude": not is_alone and (best is jumped or causes.is_of_magnitude(case, origin, best)),
            "clause": "" if is_empty else clause, "before": "" if cause is None else cause.kind,
            **({} if cause is None else cause.facts),
        },
    )  # fmt: skip


_OF_DATA = {
    "": "; what the model was given held it already", "loaded": "; it came with the batch",
    "made": "; what the loader gave was finite, and what the model was given was not",
}  # fmt: skip

_CLAUSES = {
    "data": "; the batch of this step is far larger than any before",
    "learning_rate": "; the weights had moved too far, as with too high a learning rate",
    "clip": "; gradients turned bad between the backward and the optimizer",
    "communication": "; gradients turned bad in the reduction over ranks",
    "mask": "; a row was masked whole",
}


def _what(bad: Bad) -> str:
    return "NaN" if bad.nan_count else "Inf"


def _clause(origin: Origin, case: Case) -> str:
    if origin.cause == "flipped":
        return f"; one element of the weight {origin.where} had become far too large"
    if origin.cause == "part":
        return f"; the weight {origin.where}, which code between the modules used, held it already"
    if origin.cause == "buffer" and case.bad_buffer is not None and not case.bad_buffer.is_bad:
        return f"; the buffer {origin.where} held far too large values"
    if origin.kind in ("weight", "optimizer") and case.entry.kind == "output":
        return f"; its {'buffer' if origin.cause == 'buffer' else 'weight'} {origin.where} held it already"
    if origin.kind == "loss" and (made := _operation(case)):
        return f"; the loss was not finite: {made}"
    return {
        "data": _OF_DATA.get(origin.cause, "") if case.entry.fqn or case.entry.kind != "input" else "",
        "sent": "; it came with what another rank had sent",
        "between": f"; code in the forward of {name_of(origin.where)} made it",
        "loss": "; the loss was not finite",
    }.get(origin.kind, "")


def _operation(case: Case) -> str:
    """What in the loss was, in a few words; "" where that is not known."""
    graph = operations.graph_of(case)
    made, came = (None, None) if graph is None else (operations.made_by(graph), operations.given(graph))
    if made is not None:
        return f"{operations.word(made.op)} in {made.value.dtype} is where it began"
    return (
        "" if came is None else f"what it was given beside the outputs held {'NaN' if came.value.nan_count else 'Inf'}"
    )


def _evidence(
    case: Case, origin: Origin, cause: Before | None, earlier: list[Spell], *, is_alone: bool, is_meant: bool
) -> Iterator[str]:
    yield f"It held {counts(case.bad)} ({case.entry.dtype})."
    if cause is not None:
        yield cause.reported
    yield from origin.reported
    last = case.last_before(case.bad.tensor)
    if last is not None and not case.is_loaded:
        magnitude = range_text(case.entry.dtype, last[1]) if last[1] else "0 in all elements"
        when = "In the step before" if last[0] == case.bad.step - 1 else f"At step {last[0]}"
        growth = case.growth
        grew = "" if growth is None else f", growing {growth.bits_a_step:.2g} bits a step for {growth.steps} steps"
        yield f"{when} it {'had' if last[1] else 'was'} {magnitude}{grew}."
    at = case.bad.step
    rates = [rate for name in RATES for rate in case.evidence.series(name, at, at + 1, case.bad.rank)]
    known = next((rate for rate in rates if np.isfinite(rate)), None)
    if cause is None and known is not None:
        yield f"The learning rate of this step is {known:.3g}."
    positive = case.context.has_positive_inf if case.context is not None else None
    if is_alone and positive is not None:
        yield "Some of it was +Inf." if positive else "All of it was -Inf."
    if is_meant:
        yield "No NaN, no bad gradient and no bad loss followed at that step: it went nowhere, as a mask's Inf."
        if positive is None:
            yield "Its sign is not known: that of a mask is -Inf."
    elif is_alone:
        yield (
            "No NaN, no bad gradient and no bad loss followed at that step: what is computed of it must divide by it "
            "or bound it, and is 0 or that bound where it should not be. A mask that is added is -Inf."
        )
    if earlier:
        step, clean = earlier[0].step, earlier[0].clean_step
        yield f"It was not the first time: step {step} held NaN or Inf too, and step {clean} no more."


def _remedies(
    case: Case, origin: Origin, cause: Before | None, best: Candidate, *, is_alone: bool, is_meant: bool
) -> Iterator[Remedy]:
    if cause is not None:
        yield cause.remedy
        if case.is_loaded and origin.kind == "weight":
            return
    if is_alone and not is_meant:
        yield from remedies(case, origin, best)
    if is_alone:
        yield Remedy(
            "If this Inf is meant, say so, and it is no longer counted.",
            f"rangewatch.attach(model, optimizer, allow_inf=[{case.entry.fqn!r}])",
            "nothing that was recorded took it over",
        )  # fmt: skip
    if not is_alone or (is_meant and origin.cause):
        yield from remedies(case, origin, best, is_named=cause is not None)


MOST_RANKS = 64
"""Other ranks whose own gradients are examined."""


def path_of(view: StepView, bad: Bad, spell: Spell, later: Sequence[Spell]) -> Iterator[str]:
    """The way from the first bad tensor on, a sentence a stage. `later`: spells that came after this one."""
    yield from _own_step(view, bad)
    skipped = is_skipped(view.evidence, bad.step)
    if skipped:
        yield f"The loss scaler skipped step {bad.step}: no weight was changed."
    elif view.evidence.is_loss_scaled:
        yield f"The loss scaler did not skip step {bad.step}."
    if len(view.evidence.ranks) > 1:
        yield from _other_ranks(view, bad, is_skipped=skipped)
    yield from _after(view, bad, spell, later)


def _own_step(view: StepView, bad: Bad) -> Iterator[str]:
    outputs = _following(view, bad, "output", "input")
    if outputs:
        yield f"In the same forward it reached {several(outputs)}."
    loss = view.loss()
    if loss is not None and not np.isfinite(loss):
        yield f"The loss of step {bad.step} was {'NaN' if np.isnan(loss) else 'Inf'}."
    through = _following(view, bad, "grad_output")
    if through:
        yield f"In the backward it reached the gradients of the outputs of {several(through)}."
    observed, is_bad = view.is_of("grad"), view.is_of("grad") & view.is_bad
    if is_bad.any():
        names = _names(view, is_bad)
        yield f"{len(names)} of {int(observed.sum())} recorded parameter gradients held it: {several(names)}."
    elif observed.any() and view.entries[bad.tensor].kind not in ("reduced_grad", "update"):
        yield f"None of the {int(observed.sum())} recorded parameter gradients held it."


def _following(view: StepView, bad: Bad, *kinds: str) -> list[str]:
    chosen = view.is_of(*kinds) & view.is_bad
    chosen[bad.tensor] = False
    own = view.entries[bad.tensor].fqn
    return [each for each in _names(view, chosen) if each != name_of(own)]


def _names(view: StepView, chosen: np.ndarray) -> list[str]:
    return list(dict.fromkeys(name_of(view.entries[each].fqn) for each in view.in_order(chosen)))


def _other_ranks(view: StepView, bad: Bad, *, is_skipped: bool) -> Iterator[str]:
    evidence = view.evidence
    at_once = [rank for rank in bad_ranks(evidence, bad.step) if rank != bad.rank]
    clean = [rank for rank in evidence.ranks if rank not in at_once and rank != bad.rank]
    if at_once:
        yield f"At step {bad.step} {ranks_text(at_once)} held NaN or Inf too."
    if clean:
        yield f"What {ranks_text(clean)} recorded at step {bad.step} was finite."
    next_ranks = set(bad_ranks(evidence, bad.step + 1))
    reached = [rank for rank in clean if rank in next_ranks]
    if not reached or is_skipped:
        return
    buckets = _buckets(view)
    if buckets:
        who = ranks_text(reached).capitalize()
        yield f"{who} got it through the all_reduce of {buckets} and the update of the weights."
    else:
        yield (
            f"{ranks_text(reached).capitalize()} had it at step {bad.step + 1}: through what ranks exchange after the "
            "backward, and the update of the weights."
        )


def _buckets(view: StepView) -> str:
    """DDP's buckets with gradients that were bad, such as "buckets 0 (head.weight and 1 more) and 2 (...)"."""
    names = {view.entries[each].fqn for each in view.in_order(view.is_of(*BACKWARD) & view.is_bad)}
    reported = bucket_names(view.evidence.run, "collective", view.step)
    items = reported.items() if isinstance(reported, dict) else enumerate(reported)
    buckets = {
        str(number): [each for each in parameters if each in names]
        for number, parameters in items
        if isinstance(parameters, Sequence) and not isinstance(parameters, str)
    }
    shown = [f"{number} ({several(inside, 2)})" for number, inside in buckets.items() if inside]
    return f"{'bucket' if len(shown) == 1 else 'buckets'} {several(shown)}" if shown else ""


def _after(view: StepView, bad: Bad, spell: Spell, later: Sequence[Spell]) -> Iterator[str]:
    evidence, step = view.evidence, bad.step + 1
    ranks = bad_ranks(evidence, step)
    if ranks:
        first = StepView(evidence, ranks[0], step).first()
        where = "" if first is None else f", first {the(view.entries[first.tensor])}"
        where += f" on rank {ranks[0]}" if len(ranks) > 1 else ""
        is_whole = len(ranks) == len(evidence.ranks)
        who = "all ranks" if is_whole and len(ranks) > 1 else ranks_text(ranks)
        yield f"At step {step} {who} held NaN or Inf{where}."
    if spell.clean_step is not None and later:
        yield f"It was clean again at step {spell.clean_step}; NaN or Inf came back at step {later[0].step}."
    elif spell.clean_step is not None and not _is_read_since(evidence, bad, spell.clean_step):
        yield f"Whether it recovered is not known: {the(view.entries[bad.tensor])} has not been read since."
    elif spell.clean_step is not None:
        yield f"It recovered at step {spell.clean_step}: nothing since then has held NaN or Inf that was not skipped."
    elif spell.last_step > bad.step:
        pauses = "; 1 step between was clean" if spell.pauses == 1 else f"; {spell.pauses} steps between were clean"
        held = f"It lasts: step {spell.last_step}, the last that was reported, held NaN or Inf"
        yield f"{held}{pauses if spell.pauses else ''}."


def _is_read_since(evidence: Evidence, bad: Bad, step: int) -> bool:
    """What an optimizer keeps, and weights, are read at one step in many."""
    level = level_for(evidence.whole_stop - step, COLUMNS)
    tensor = np.array([bad.tensor])
    block = evidence.run.slice(RANGES, list(evidence.ranks), level, step, evidence.whole_stop, ("call_count",), tensor)
    calls = block.columns["call_count"]
    return bool((calls[:, 1 if level else 0 :] > 0).any())  # a coarse column may begin before


RULE = Rule(
    name="first_nonfinite",
    title="NaN or Inf",
    severity="critical",
    explanation="A tensor held NaN or Inf. What is computed from it is so too, as a rule: the outputs after it, the "
    "loss, the gradients, and with the next update the weights, from which a run does not recover. The first tensor "
    "that held one, in the order of steps and calls, is where to look; what came after it is its consequence.",
    check=check,
    explains=(
        "loss_nonfinite",
        "evaluation_nonfinite",
        "rank_failed",
        "loss_scale_collapse",
        "loss_scale_unexplained_skip",
        "loss_spike",
        "exploding_gradient",
        "short_spike",
        "loss_stuck",
        *FOLLOWING,
    ),
    leads_to=("first_nonfinite",),
)
