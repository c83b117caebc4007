"""Inputs that were never normalised, where a loss is of no function that is known, as of squared differences by hand:
at first and still it is the mean square of what the model gives, so that the targets are nothing beside that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.activations.initial_gain import LINEAR, gains_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, normalise, normalises_first, usual_input
from rangewatch_server.rules.loss.series import first_and_last
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import FEW_RANKS, Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding

FIRST, LONG, FEW, SPAN = 4, 128, 32, 256
"""First steps in which the model's output is measured, steps after which a loss is to have fallen, how many of it a
median is taken of, and the last steps in which the output is looked for: its squares are summed once in 100 steps."""

PARTS, SAME = (1.0, 0.5), 0.05
"""What the loss is of the mean square of the outputs, and by which part it may differ from that: targets of a tenth of
the outputs make a hundredth."""

FAR = 1e3
"""Mean square of the outputs, at first and by now, from which on they are far from targets of about 1."""

PASSED, GAIN = 0.1, 4.0
"""Part of the inputs' size that a linear layer's largest output is at least, where they come to it as they are; and
times what comes before it that the layers' outputs may be, in the median: of more the weights are too large."""


class Measured(NamedTuple):
    """At `step` the mean square of what the model gave, `square`, and the loss."""

    step: int
    square: float
    loss: float


def squares_of_outputs(evidence: Evidence, name: str, start: int) -> Iterable[Finding]:
    """Of a run that begins here, by the loss `name`; at most one finding."""
    size, medians = usual_input(evidence, start, start + FIRST), first_and_last(evidence, FEW)
    if size < LARGE_INPUT or medians is None or evidence.whole_stop - start < LONG or medians[1] < FAR * min(PARTS):
        return
    own = _own(evidence)
    if own is None or normalises_first(evidence) or not _is_passed_on(evidence, start, size):
        return
    first = _measured(evidence, own, name, start, start + FIRST)[:1]
    last = _measured(evidence, own, name, max(start + LONG // 2, evidence.whole_stop - SPAN), evidence.whole_stop)[-1:]
    if first and last and any(_is_square(first[0], part) and _is_square(last[0], part) for part in PARTS):
        yield _finding(evidence, name, first[0], last[0], medians[1], size)


def _own(evidence: Evidence) -> int | None:
    """The model's own output."""
    entries = evidence.tensors.entries
    return next((each for each in tensors_of(evidence, "output").tolist() if not entries[each].fqn), None)


def _is_passed_on(evidence: Evidence, start: int, size: float) -> bool:
    """Whether what the model is given comes to a linear layer as large as it is, and the layers are as usual."""
    entries, gains = evidence.tensors.entries, gains_of(evidence, start)
    linear = np.array([each for each in tensors_of(evidence, "output").tolist() if entries[each].module in LINEAR])
    if not len(linear) or (gains and np.median([each.factor for each in gains]) >= GAIN):
        return False
    first = linear[np.argmin(evidence.tensors.position[linear])]
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + FIRST, ("amax",), np.array([first]))
    return bool(np.asarray(block.columns["amax"], np.float64).max(initial=0.0) >= PASSED * size)


def _measured(evidence: Evidence, own: int, name: str, start: int, stop: int) -> list[Measured]:
    """Each step in [start, stop) at which both are known."""
    names = ("full_numel", "sum_sq")
    if start >= stop or not set(names) <= set(evidence.run.names().fill[RANGES]):
        return []
    block = evidence.run.slice(RANGES, list(evidence.ranks[:FEW_RANKS]), 0, start, stop, names, np.array([own]))
    numel, squares = (np.asarray(block.columns[each][0], np.float64) for each in names)
    loss: Array = evidence.series(name, start, stop)[: len(numel)]
    at = np.flatnonzero((numel[: len(loss)] > 0) & np.isfinite(squares[: len(loss)]) & np.isfinite(loss))
    return [Measured(start + int(each), float(squares[each] / numel[each]), float(loss[each])) for each in at]


def _is_square(measured: Measured, part: float) -> bool:
    return measured.square >= FAR and abs(measured.loss / (part * measured.square) - 1) <= SAME


def _finding(evidence: Evidence, name: str, first: Measured, last: Measured, now: float, size: float) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=evidence.start, subject="inputs of squares",
        summary=f"{place(evidence.start, rank)}: {loss_called(name)} begins at {first.loss:.4g} and is {now:.4g} by "
        f"now, all of it made by outputs that are too large: its inputs are far too large, {size:.3g} in root mean "
        "square.",
        evidence=(
            f"At step {first.step} the model's output was {first.square**0.5:.4g} in root mean square, and at step "
            f"{last.step} {last.square**0.5:.4g}: the loss was the square of that, or half of it, to within "
            f"{SAME:.0%}, so that targets are nothing beside it. A model that always gives 0 has far less.",
            "Layers are initialised for inputs of about 1: outputs are as many times too large as inputs are, and what "
            "is learned first is to make them smaller.",
            "Cause (likely): the data, which were not normalised. Against that: the model may normalise them itself.",
            "What would decide: print mean and deviation of a batch, of each column, as the model is given it.",
        ),
        remedy=(
            normalise(
                "a sample of the inputs of the first steps, and the model's outputs since",
                "of frequencies, sizes and counts that span decades take the logarithm before",
            ),
        ),
        facts={"loss": now, "input_rms": size, "output_rms": last.square**0.5, "cause_class": "data"},
    )  # fmt: skip
