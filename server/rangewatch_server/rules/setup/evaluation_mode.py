"""The model is trained in the wrong mode: the whole of it in `eval()`, as where nobody called `train()` again, or a
frozen part of it in `train()`, as where `model.train()` has taken a teacher along. Or it is evaluated in `train()`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import EvaluatedInTrain, EvaluationMode, FrozenInTrain
from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of each of five: the first spell that was reported, be it over."""
    yield from _frozen(evidence)
    yield from _evaluated(evidence)
    yield from _poisoned(evidence)
    yield from _untrained(evidence)
    every = evidence.details(EvaluationMode)
    for at, (event, known) in enumerate(every):
        if known.steps >= LASTING:
            later = [other for other, each in every[at + 1 :] if other.rank == event.rank and not each.steps]
            yield _finding(known, event.rank, event.step, later[0].step if later else None)
            return


def _frozen(evidence: Evidence) -> Iterable[Finding]:
    """Of the first spell that a frozen part was in train()."""
    every = evidence.details(FrozenInTrain)
    for at, (event, known) in enumerate(every):
        if known.steps > 0:
            later = [other for other, each in every[at + 1 :] if other.rank == event.rank and not each.steps]
            yield _frozen_finding(known, event.rank, event.step, later[0].step if later else None)
            return


def _frozen_finding(known: FrozenInTrain, rank: int, seen: int, back: int | None) -> Finding:
    since = seen - known.steps + 1
    out = f"{known.dropouts} dropout{'s drop' if known.dropouts > 1 else ' drops'} elements out"
    norms = (
        f"{known.norms} batch norm{'s go' if known.norms > 1 else ' goes'} by the batch, and running statistics move"
    )
    effects = [*([out] if known.dropouts else []), *([norms] if known.norms else [])]
    until = f"; since step {back} it is in eval() again, or not frozen" if back is not None else ""
    more = (
        f" and {known.parts - 1} more frozen part{'s' * (known.parts > 2)} are"
        if known.parts > 1
        else ", which is frozen, is"
    )
    return Finding(
        severity="info" if back is not None else "",
        rank=rank, step=since, subject="frozen",
        summary=f"{place(since, rank)}: {known.fqn}{more} in train() from here on: {' and '.join(effects)}{until}.",
        evidence=(
            f"In the steps before it was in eval() while the rest was trained; in {known.steps} steps in a row, up to "
            f"step {seen}, it was in train(). None of its parameters requires a gradient.",
            "Cause (likely): a call of train() of the whole model, such as after an evaluation, which takes its frozen "
            "parts along. Against that: it may be meant, as where noise of a teacher is wanted.",
        ),
        remedy=(
            Remedy(
                f"Call eval() of {known.fqn} after each train() of the model; or override train() so that it stays.",
                f"model.train()\nmodel.get_submodule({known.fqn!r}).eval()  # each time",
                "the modules' own flags at the end of each step, and requires_grad of their parameters",
            ),
        ),
        facts={
            "since_step": since, "seen_step": seen, "dropouts": known.dropouts, "norms": known.norms,
            "parts": known.parts, "where": known.fqn, "back_step": back, "is_over": back is not None,
            "cause_class": "eval",
        },
    )  # fmt: skip


BAD_NORMS, UNTRAINED, LASTING = "bad_norms", "untrained_norms", 8
"""Series of the agent; the second is of one step, after so many."""


def _first_above_0(evidence: Evidence, name: str) -> tuple[int, int] | None:
    """The first step at which the series is, and its value then."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    size, columns = FANOUT**level, evidence.largest(name, start, stop, level)
    above = np.flatnonzero(columns > 0)
    if not len(above):
        return None
    low = max(start, (start // size + int(above[0])) * size)
    values = evidence.largest(name, low, min(stop, low + size))
    at = int(np.flatnonzero(values > 0)[0])
    return low + at, int(values[at])


def _poisoned(evidence: Evidence) -> Iterable[Finding]:
    """Of the first step after which running statistics held NaN or Inf, by a pass in train() that nothing follows."""
    if not evidence.has_series(BAD_NORMS):
        return
    if (found := _first_above_0(evidence, BAD_NORMS)) is None:
        return
    step, norms = found
    rank, newest = only_rank(evidence), evidence.largest(BAD_NORMS, evidence.whole_stop - WINDOW, evidence.whole_stop)
    read = newest[np.isfinite(newest)]
    last = float(read[-1]) if len(read) else norms
    yield Finding(
        severity="info" if last == 0 else "", rank=rank, step=step, subject="bad statistics",
        summary=f"{place(step, rank)}: the running statistics of {norms} batch norm{'s' if norms > 1 else ''} hold NaN "
        f"or Inf since an evaluation in train(){'' if last else ', and are finite again'}: what the model gives in "
        "eval() is NaN.",
        evidence=(
            "At that step the model was called without gradients, and in train(): norms then take the batch into "
            "their running mean and variance. The training goes by each batch's own, and shows nothing of it.",
            "Cause (likely): the evaluation: its batch held NaN or Inf, and nobody had called eval() before it. It "
            "does not go away: a part of NaN is NaN.",
        ),
        remedy=(
            Remedy(
                "Call model.eval() before an evaluation and model.train() after it; look at the batches of this one; "
                "and make the running statistics anew, of some hundred batches, before the next.",
                "for module in model.modules():\n"
                "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
                "        module.reset_running_stats()",
                "the norms' own buffers were read after the step",
            ),
        ),
        facts={
            "since_step": step, "cause_step": step - 1,  # what it logs may be of the step before
            "norms": norms, "is_over": last == 0, "cause_class": "eval",
        },
    )  # fmt: skip


def _evaluated(evidence: Evidence) -> Iterable[Finding]:
    """Of the first place that evaluated the model in eval() before, and in train() since."""
    every = evidence.details(EvaluatedInTrain)
    for at, (event, known) in enumerate(every):
        if known.steps > 0 and known.norms + known.dropouts > 0:
            later = [other for other, each in every[at + 1 :] if other.rank == event.rank and not each.steps]
            yield _evaluated_finding(known, event.rank, event.step, later[0].step if later else None)
            return


def _evaluated_finding(known: EvaluatedInTrain, rank: int, seen: int, back: int | None) -> Finding:
    norms = (
        f"{known.norms} batch norms go by its batches, and take them into the running mean and variance"
        if known.norms > 1
        else "the batch norm goes by its batches, and takes them into the running mean and variance"
    )
    drops = f"{known.dropouts} dropout{'s drop' if known.dropouts > 1 else ' drops'} elements out"
    effects = [*([norms] if known.norms else []), *([drops] if known.dropouts else [])]
    until = f"; since step {back} it is in eval() again" if back is not None else ""
    effect = (
        "No weight changes by it, and the training loss, which goes by each batch's own statistics, does not show it: "
        "what the model gives in eval() does, and the more so the less those batches are like the training's."
        if known.norms
        else "No weight changes by it; what is measured has noise."
    )
    meant = "statistics are estimated anew of that data" if known.norms else "that noise is wanted, as by Monte Carlo"
    return Finding(
        severity="info" if back is not None or not known.norms else "",
        rank=rank, step=known.first, subject="evaluated in train",
        summary=f"{place(known.first, rank)}: the model is evaluated in train() from here on, at {known.line}: "
        f"{' and '.join(effects)}{until}.",
        evidence=(
            f"At that place it was called without gradients and in eval() in {known.evals} steps before, and in "
            f"train() in {known.steps} steps since, up to step {seen}.",
            effect,
            "Cause (likely): eval() is not called before that evaluation any more, or train() comes between. Against "
            f"that: it may be meant, as where {meant}.",
        ),
        remedy=(
            Remedy(
                "Call model.eval() before the evaluation and model.train() after it; and make the running statistics "
                "anew, of some hundred batches of the training's data."
                if known.norms
                else "Call model.eval() before the evaluation and model.train() after it.",
                "model.eval()\n"
                "with torch.no_grad():\n"
                "    ...  # the evaluation\n"
                "model.train()",
                "the modules' own flags, when they were called without gradients",
            ),
        ),
        facts={
            "since_step": known.first, "seen_step": seen,
            "cause_step": known.first - 1,  # whose update it follows
            "norms": known.norms, "dropouts": known.dropouts, "line": known.line, "back_step": back,
            "is_over": back is not None, "cause_class": "eval",
        },
    )  # fmt: skip


def _untrained(evidence: Evidence) -> Iterable[Finding]:
    """Of norms in eval() that nothing has trained, in a model in train()."""
    found = _first_above_0(evidence, UNTRAINED) if evidence.has_series(UNTRAINED) else None
    if found is None:
        return
    seen, norms = found
    since, rank = max(evidence.start, seen - LASTING + 1), only_rank(evidence)
    yield Finding(
        rank=rank, step=since, subject="untrained norms",
        summary=f"{place(since, rank)}: {f'all {norms} batch norms are' if norms > 1 else 'the batch norm is'} in "
        "eval() though the model is in train(), and nothing has trained their running statistics: they normalise "
        "nothing.",
        evidence=(
            f"In {LASTING} steps, up to step {seen}, they went by a running mean of 0 and a running variance of 1 "
            "in all elements, which they were made with and which stand still in eval().",
            "Cause (shown): code that keeps batch norms in eval(), as a train() that is overridden, or a loop over "
            "modules: a recipe for fine-tuning, right where statistics were loaded.",
        ),
        remedy=(
            Remedy(
                "Train the norms too: leave them in train(). If they are to be frozen, load weights with their running "
                "statistics first.",
                "for module in model.modules():\n"
                "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
                "        module.train()  # after model.train()",
                "the norms' own flags and buffers were read",
            ),
        ),
        facts={"since_step": since, "seen_step": seen, "norms": norms, "cause_class": "eval"},
    )  # fmt: skip


def _finding(known: EvaluationMode, rank: int, seen: int, back: int | None) -> Finding:
    since = seen - known.steps + 1
    idle = [
        *(
            [f"{known.dropouts} dropout{'s drop' if known.dropouts > 1 else ' drops'} nothing out"]
            * (known.dropouts > 0)
        ),
        *(
            [f"{known.norms} batch norm{'s go' if known.norms > 1 else ' goes'} by running statistics that stand still"]
            * (known.norms > 0)
        ),
    ]
    until = f"; since step {back} it is in train() again" if back is not None else ""
    before = (
        f"Until step {since - 1} it was trained in train()." if known.was_trained
        else "It has not been trained in train() since the run began: what is loaded, as by from_pretrained(), is in "
        "eval() at first."
    )  # fmt: skip
    return Finding(
        severity="info" if back is not None or not (known.was_trained or known.norms) else "",
        rank=rank, step=since, subject="evaluation", tensor=known.where or None,
        summary=f"{place(since, rank)}: the model is trained in evaluation mode: {' and '.join(idle)}{until}.",
        evidence=(
            f"In {known.steps} steps in a row, up to step {seen}, each forward with gradients was made in eval(), a "
            "backward followed, and no module of the model was in train().",
            before,
            *([f"All of them that are trained are in {known.where}."] if known.where else []),
            "Cause (shown): model.eval() without model.train() after it. Against that: it may be meant, to leave "
            "dropout "
            "out; single modules in eval(), such as frozen batch norms, are not reported.",
        ),
        remedy=(
            Remedy(
                "Call model.train() after each evaluation, preview or sample, and before the next training step; at "
                "the "
                "latest at the top of the loop.",
                "model.train()  # before the forward of each training step",
                "the modules' own flags, and the backwards that followed",
            ),
        ),
        facts={
            "since_step": since, "seen_step": seen, "is_state": known.norms > 0,
            "dropouts": known.dropouts, "norms": known.norms,
            "back_step": back, "is_over": back is not None, "cause_class": "eval",
            **({"where": known.where} if known.where else {}),
        },
    )  # fmt: skip


RULE = Rule(
    name="evaluation_mode",
    title="Trained in the wrong mode",
    severity="warning",
    explanation="The whole model is in `eval()` while it is trained: nothing is dropped out, and batch norms go by "
    "their running statistics and no longer update them, while the weights go on. The loss often falls faster than "
    "before, and what was learned generalises worse. Reported after 8 such steps in a row, of a model that has dropout "
    "or running statistics; a part of it in `eval()`, such as frozen batch norms, is not. Info where it was so from "
    "the first step on and there is dropout alone, which fine-tuning may mean. Or the model is in `train()` and all "
    "its norms in `eval()`, with statistics that nothing has trained: they normalise nothing. Or a frozen part, such "
    "as a teacher, was in `eval()` and is put into `train()` with the rest: its dropout makes noise, and its running "
    "statistics move. Or an evaluation in `train()` has brought NaN into running statistics. Or the line that "
    "evaluated the model in `eval()` does so in `train()` now: norms take its batches into their running statistics; "
    "info where there is dropout alone.",
    check=check,
    explains=(
        "evaluation_nonfinite",
        "exploding_gradient",
        "loss_spike",
        "short_spike",
        "update_ratio",
        "vanishing_gradient",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)
