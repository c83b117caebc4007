"""The loss is NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.nonfinite.code_snippets import FIND_BACKWARD
from rangewatch_server.rules.nonfinite.search import is_skipped
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import MOST_RANKS
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_SKIPPED = 256
"""Steps with such a loss that a loss scaler skipped, and that are passed over in the search for one it did not."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first step whose loss was, and which no loss scaler skipped."""
    name = loss_name(evidence)
    if name is None:
        return
    level = level_for(evidence.stop - evidence.start, SCAN_COLUMNS)
    for count, step in enumerate(_bad_steps(evidence, name, level, evidence.start, evidence.stop)):
        if count == MOST_SKIPPED:
            return
        if not is_skipped(evidence, step):
            yield _finding(evidence, name, step)
            return


def _bad_steps(evidence: Evidence, name: str, level: int, start: int, stop: int) -> Iterator[int]:
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
            yield from _bad_steps(evidence, name, level - 1, low, high)


def _finding(evidence: Evidence, name: str, step: int) -> Finding:
    ranks = evidence.ranks[:MOST_RANKS]
    values = {rank: float(evidence.series(name, step, step + 1, rank)[0]) for rank in ranks}
    reported = [rank for rank in ranks if _was_reported(evidence, name, step, rank)]
    bad = [rank for rank in reported if not np.isfinite(values[rank])]
    rank = bad[0] if len(bad) == 1 else None
    word = "NaN" if any(np.isnan(values[each]) for each in bad) else "Inf"
    where = place(step, rank)
    return Finding(
        rank=rank, step=step, subject="loss", summary=f"{where}: the loss ({name}) is {word}.",
        evidence=(_whose(bad, reported, len(evidence.ranks)), _before(evidence, name, step)),
        remedy=(
            Remedy(
                "See which tensor was the first to hold NaN or Inf; where none did, the loss itself computes it: "
                "a logarithm or division of 0, or an empty batch.",
                FIND_BACKWARD, "it rests on the loss alone",
            ),
        ),
        facts={"ranks": bad},
    )  # fmt: skip


def _was_reported(evidence: Evidence, name: str, step: int, rank: int) -> bool:
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, [rank], 0, step, step + 1, ("count",), rows)
    return bool(block.columns["count"][0, 0] > 0)


def _whose(bad: list[int], reported: list[int], ranks: int) -> str:
    looked = "" if ranks <= MOST_RANKS else f" (the first {MOST_RANKS} of {ranks} ranks were looked at)"
    if not bad:
        return f"It was so on a rank that was not looked at{looked}."
    names = ", ".join(map(str, bad[:8])) + (" and others" if len(bad) > 8 else "")
    return f"It was so on {len(bad)} of the {len(reported)} ranks that logged it: {names}{looked}."


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
    "changed, so it is not told of.",
    check=check,
)
