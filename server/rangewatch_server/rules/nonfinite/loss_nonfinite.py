"""The loss is NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, level_for
from rangewatch_server.rules.batch_rows import row_sentences
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite.code_snippets import FIND_BACKWARD
from rangewatch_server.rules.nonfinite.first_nonfinite import FOLLOWING
from rangewatch_server.rules.nonfinite.loss_cause import explained
from rangewatch_server.rules.nonfinite.search import is_skipped
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import MOST_RANKS
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_SKIPPED = 256
"""Steps with such a loss that a loss scaler skipped, and that are passed over in the search for one it did not."""

RECENT = 64
"""Last steps in which a finite loss says that it went again."""


_UNKNOWN = Remedy(
    "See which tensor was the first to hold NaN or Inf; where none did, the loss itself computes it: a logarithm or "
    "division of 0, or an empty batch.",
    FIND_BACKWARD, "based on the loss alone",
)  # fmt: skip


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first step whose loss was, and which no loss scaler skipped."""
    name = loss_name(evidence)
    if name is None:
        return
    level = level_for(evidence.stop - evidence.start, SCAN_COLUMNS)
    for count, step in enumerate(bad_steps(evidence, name, level, evidence.start, evidence.stop)):
        if count == MOST_SKIPPED:
            return
        if not is_skipped(evidence, step):
            yield _finding(evidence, name, step)
            return


def bad_steps(evidence: Evidence, name: str, level: int, start: int, stop: int) -> Iterator[int]:
    """Ascending, those in [start, stop) at which the series is NaN or Inf, found by columns of `level`."""
    if start >= stop or not evidence.ranks:
        return
    deadline.check()
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("nonfinite_count",), rows)
    for column in np.flatnonzero(block.columns["nonfinite_count"][0] > 0):
        at = block.first + int(column)
        if level == 0:
            yield at
        else:
            low, high = max(start, at * FANOUT**level), min(stop, (at + 1) * FANOUT**level)
            yield from bad_steps(evidence, name, level - 1, low, high)


def _finding(evidence: Evidence, name: str, step: int) -> Finding:
    ranks = evidence.ranks[:MOST_RANKS]
    values = {rank: float(evidence.series(name, step, step + 1, rank)[0]) for rank in ranks}
    reported = [rank for rank in ranks if _was_reported(evidence, name, step, rank)]
    bad = [rank for rank in reported if not np.isfinite(values[rank])]
    rank = bad[0] if len(bad) == 1 else None
    word = "NaN" if any(np.isnan(values[each]) for each in bad) else "Inf"
    where = place(step, rank)
    last = evidence.series(name, max(step + 1, evidence.whole_stop - RECENT), evidence.whole_stop)
    is_over = bool(np.isfinite(last).any())
    cause = explained(evidence, name, step, bad[0], is_nan=word == "NaN") if bad else None
    return Finding(
        severity="warning" if is_over else "critical", rank=rank, step=step, subject="loss",
        tensor=None if cause is None else cause.tensor, kind=None if cause is None else cause.kind,
        summary=f"{where}: {loss_called(name)} is {word}.",
        evidence=(
            _whose(bad, reported, len(evidence.ranks)), _before(evidence, name, step),
            *(["It was finite again later, and so the weights are."] if is_over else []),
            *dict.fromkeys((*(() if cause is None else cause.sentences), *row_sentences(evidence.run, bad, step))),
        ),
        remedy=(_UNKNOWN,) if cause is None else cause.remedies,
        facts={
            "ranks": bad, "is_over": is_over,
            "recovered_step": 1 + _last_bad(evidence, name, step) if is_over else None,
            "of_magnitude": cause is None or cause.cause != "data", **({} if cause is None else cause.facts()),
        },
    )  # fmt: skip


def _last_bad(evidence: Evidence, name: str, step: int) -> int:
    """The last step of the newest at which it was so; `step` where none was."""
    low = max(step, evidence.whole_stop - WINDOW)
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(
        SERIES_PART, list(evidence.ranks), 0, low, evidence.whole_stop, ("nonfinite_count",), rows
    )
    bad = np.flatnonzero(block.columns["nonfinite_count"][0] > 0)
    return low + int(bad[-1]) if len(bad) else step


def _was_reported(evidence: Evidence, name: str, step: int, rank: int) -> bool:
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, [rank], 0, step, step + 1, ("count",), rows)
    return bool(block.columns["count"][0, 0] > 0)


def _whose(bad: list[int], reported: list[int], ranks: int) -> str:
    examined = "" if ranks <= MOST_RANKS else f" (the first {MOST_RANKS} of {ranks} ranks were examined)"
    if not bad:
        return f"It was so on a rank that was not examined{examined}."
    if len(reported) == 1:
        return f"Only rank {bad[0]} logged it{examined}."
    names = ", ".join(map(str, bad[:8])) + (" and others" if len(bad) > 8 else "")
    return f"It was so on {len(bad)} of the {len(reported)} ranks that logged it: {names}{examined}."


def _before(evidence: Evidence, name: str, step: int) -> str:
    values = evidence.series(name, max(evidence.start, step - 64), step)
    values = values[np.isfinite(values)]
    return f"The value before it was {values[-1]:.4g}." if len(values) else "No finite value is known before it."


RULE = Rule(
    name="loss_nonfinite",
    title="Loss is NaN or Inf",
    severity="critical",
    explanation="The training loss was NaN or Inf at a step. The gradients that are computed from it are NaN or Inf as "
    "well, and so are the weights once the optimizer has used them: from then on the model learns nothing, and it has "
    "to go back to a checkpoint from before that step. Where a loss scaler skipped such a step its weights were not "
    "changed, so it is not reported. A warning where the loss was finite again later.",
    check=check,
    leads_to=("first_nonfinite",),
    explains=("evaluation_nonfinite", "loss_spike", "short_spike", "exploding_gradient", "loss_stuck", *FOLLOWING),
)
