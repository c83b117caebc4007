"""A logged loss of an evaluation is NaN or Inf, was finite before, and the training goes on: what is at fault is the
evaluation, its data, or the copy of the model that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import SERIES_PART, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite.loss_nonfinite import bad_steps
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

EVALUATED = re.compile(
    r"(?:^|(?<!std)[/_.\- ])(?:val|valid|validation|eval|evaluation|test|dev|held_?out)(?:$|[/_.\- ])", re.I
)
LOSS = re.compile(r"loss|nll|cross_?entropy|perplexity|ppl|(?:^|[/_.\- ])(?:bce|mse|mae|rmse)(?:$|[/_.\- ])", re.I)
"""Names of series that are a loss of an evaluation have a match of both."""

MOST_SERIES = 8
"""Such series that are looked at, by name."""

PASSES, BAD_OUTPUTS = "eval_passes", "eval_nonfinite"
"""Series of the forwards of an evaluation that the agent saw, and of NaN and Inf in what they returned."""

FEW = 2
"""Finite values that may come in a row from the first step on where evaluations are many steps apart."""

AFTER = 64
"""Steps from it on in which a finite training loss says that the training is well."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first step at which one of them was, after it had been finite."""
    training = loss_name(evidence)
    names = sorted(name for name in evidence.run.names().series if EVALUATED.search(name) and LOSS.search(name))
    level = level_for(evidence.stop - evidence.start, SCAN_COLUMNS)
    first: tuple[int, str] | None = None
    for name in (each for each in names[:MOST_SERIES] if each != training):
        step = next(bad_steps(evidence, name, level, evidence.start, evidence.stop), None)
        if step is not None and (first is None or step < first[0]) and _was_finite(evidence, name, step):
            first = step, name
    if first is not None:
        yield _finding(evidence, *first, training)


def _was_finite(evidence: Evidence, name: str, step: int) -> bool:
    """And NaN is not what is logged where nothing was evaluated, from the step behind the first evaluation on."""
    before = _finite(evidence, name, evidence.start, step)
    return before > FEW or (before > 0 and not np.isfinite(evidence.series(name, step - 1, step)).any())


def _finite(evidence: Evidence, name: str, start: int, stop: int) -> int:
    """How many values of a series there are that are."""
    row = np.array([evidence.run.names().series[name]])
    level = level_for(stop - start, SCAN_COLUMNS)
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("count", "nonfinite_count"), row)
    return int((block.columns["count"] - block.columns["nonfinite_count"]).sum())


def _finding(evidence: Evidence, step: int, name: str, training: str | None) -> Finding:
    rank = only_rank(evidence)
    value = evidence.series(name, step, step + 1)
    word = "NaN" if not len(value) or np.isnan(value[0]) else "Inf"
    before, later = _finite(evidence, name, evidence.start, step), _finite(evidence, name, step + 1, evidence.stop)
    own = _own_outputs(evidence, step)
    return Finding(
        rank=rank, step=step, subject=name, kind=None,
        summary=f"{place(step, rank)}: a loss of an evaluation, {name}, is {word}; it had been finite.",
        evidence=(
            f"It was finite {before} time{'s' if before > 1 else ''} before"
            + (f", and {later} time{'s' if later > 1 else ''} after it." if later else "."),
            *_training(evidence, training, step),
            *([own] if own else []),
            "Cause (likely): the evaluation: its batch, how its loss is computed, or the weights that it uses.",
            "What would decide: check for NaN and Inf the parameters of what is evaluated, its batch, and its outputs.",
        ),
        remedy=(_remedy(word),),
        facts={
            "series": name, "before": before, "is_over": later > 0, "cause_class": "eval", "since_step": step,
        },
    )  # fmt: skip


def _training(evidence: Evidence, training: str | None, step: int) -> Iterator[str]:
    if training is None:
        return
    values = evidence.series(training, step, min(evidence.stop, step + AFTER))
    finite = values[np.isfinite(values)]
    if len(finite) and len(finite) == len(values):
        yield f"The loss of the training is finite at that step and after it, {finite[-1]:.4g} at last."


def _own_outputs(evidence: Evidence, step: int) -> str:
    """What the agent saw of the model itself beside that step; "" where nothing is known of it."""
    if not evidence.has_series(PASSES):
        return "The model itself was never seen in an evaluation: a copy or a part of it may be evaluated."
    passes = evidence.largest(PASSES, step, step + 2).max(initial=-np.inf)
    if not passes > 0:
        return "The model itself was not evaluated beside that step: a copy of it may be what was."
    bad = evidence.largest(BAD_OUTPUTS, step, step + 2).max(initial=-np.inf) if evidence.has_series(BAD_OUTPUTS) else 0
    if bad > 0:
        return "Outputs of the model in that evaluation held NaN or Inf: its batch did, or a computation in eval()."
    return (
        "What the model gave in the first forwards of that evaluation was finite: look at the loss, and at later ones."
    )


def _remedy(word: str) -> Remedy:
    return Remedy(
        "Look at what is evaluated: the parameters of a copy of the model, as an average's, which is 0 / 0 where "
        "nothing has been averaged; then at the batch, and at a mean over no rows or no targets.",
        "bad = [name for name, each in model.named_parameters() if not each.isfinite().all()]  # of what is evaluated\n"
        'assert not bad, f"not finite: {bad}"',
        f"it is {word}, and the training is not",
    )


RULE = Rule(
    name="evaluation_nonfinite",
    title="Loss of an evaluation is NaN or Inf",
    severity="warning",
    explanation="A logged series that by its name is a loss of an evaluation (val_loss, eval/loss and the like) was "
    "finite and is NaN or Inf. The training itself may be well: the batch of the evaluation, its loss, or a copy of "
    "the model that it uses is at fault. What is chosen by that loss, as the best checkpoint or the time to stop, goes "
    "wrong with it.",
    check=check,
)
