"""What the rules on scales look at: how the scales of each operand have fitted it of late, all ranks merged."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperands
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.scales import OperandRow, columns_of, operands_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.precision.format_readings import newest_processes, rare_window
from rangewatch_server.rules.recent import Array
from rangewatch_server.rules.rule import Remedy

MOST_RANKS = 64
"""Ranks that are read one by one to name one of them; of more, the lowest."""

ALIKE = 0.25
"""Bits by which the worst rank must differ from the median of the others to be named."""


class Fit(msgspec.Struct, frozen=True):
    """Of one operand, in the last steps in which it was read: `steps` (n,); `bits` (n,): log2 of its peak, above 0 it
    saturates; `age` (n,): entry of the history, 0 where there is none; `saturated`, `flushed`: (n,) shares, NaN where
    they were not counted.
    """

    row: OperandRow
    steps: Array
    bits: Array
    age: Array
    saturated: Array
    flushed: Array

    @property
    def growth(self) -> Array:
        """(n,) log2 of the largest magnitude over the one that a delayed scale was made for."""
        return np.asarray(self.bits + self.row.operand.margin)


def recent_fits(evidence: Evidence) -> list[Fit]:
    """Of each operand that was read, in call order."""
    return list(evidence.once("scales", lambda: _recent_fits(evidence)))


def _recent_fits(evidence: Evidence) -> list[Fit]:
    names = evidence.run.names()
    if scales.PEAK not in names.fill[RANGES]:
        return []
    processes = newest_processes(evidence)
    newest = {process.id for process in processes}  # a restart may cast nothing any more, or by other scales
    since = (process.first_step for process in processes if process.first_step is not None and process.ordinal > 1)
    said = [each for event, each in evidence.details(ScaledOperands) if event.stream_id in newest]
    known = operands_of(evidence.tensors, said)
    known = [each for each in known if each.tensor is not None]
    window = rare_window(len(known))  # to say since when it is so
    start, stop = max(evidence.start, evidence.whole_stop - window, *since), evidence.whole_stop
    if not known or start >= stop:
        return []
    rows = np.unique([each.tensor for each in known if each.tensor is not None])
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, columns_of(names.fill), rows)
    return [_fit(each, block.columns, int(np.searchsorted(rows, each.tensor or 0)), start) for each in known]


def _fit(row: OperandRow, columns: dict[str, Array], at: int, start: int) -> Fit:
    values = {name: np.asarray(each[at], np.float64) for name, each in columns.items()}
    there = np.flatnonzero(values[scales.PEAK] > 0)
    taken = {name: each[there] for name, each in values.items()}
    nothing = np.zeros(len(there))
    count = taken.get(scales.COUNT, nothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = [
            np.where(count > 0, taken.get(name, nothing) / count, np.nan) for name in (scales.SATURATED, scales.FLUSHED)
        ]
    return Fit(row, start + there, np.log2(taken[scales.PEAK]), taken.get(scales.AGE, nothing), shares[0], shares[1])


def worst_rank(evidence: Evidence, fit: Fit, step: int) -> int | None:
    """The rank on which the operand is furthest beyond its scale at the step, or where only one rank has read it then
    at the last other step with more; None where the others are like it, or where that rank is beyond those that are
    read.
    """
    ranks = evidence.ranks[:MOST_RANKS]
    if len(ranks) == 1:
        return ranks[0]
    tensor = fit.row.tensor or 0
    first, last = int(fit.steps[0]), int(fit.steps[-1]) + 1
    rows = np.array([evidence.row(tensor, rank, first, last, (scales.PEAK,))[scales.PEAK] for rank in ranks])
    shared = np.flatnonzero((rows > 0).sum(axis=0) > 1)
    if not len(shared):
        return None
    at = step - first if step - first in shared else int(shared[-1])
    step, peaks = first + at, rows[:, at]
    there = np.flatnonzero(peaks > 0)
    if len(there) < 2:
        return None
    bits = np.log2(peaks[there])
    worst = int(np.argmax(bits))
    is_worst_of_all = bits[worst] >= fit.bits[np.searchsorted(fit.steps, step)] - ALIKE
    return ranks[there[worst]] if is_worst_of_all and bits[worst] - np.median(np.delete(bits, worst)) >= ALIKE else None


def run_of(is_so: Array) -> int:
    """How many of the last, without a break, are so."""
    broken = np.flatnonzero(~is_so)
    return int(len(is_so) - 1 - broken[-1]) if len(broken) else len(is_so)


LARGEST_POWER = 1023
"""Of two, as a float64: peaks reach 2^1024, and a margin as much again."""


def times(bits: float) -> str:
    """2^`bits` in words, such as "5.66"; of any bits."""
    return f"{2.0**bits:.3g}" if bits <= LARGEST_POWER else f"2^{bits:.0f}"


def named(evidence: Evidence, fit: Fit) -> str:
    """Such as "the scaled input of blocks.3.ff"."""
    return the(evidence.tensors.entries[fit.row.tensor or 0])


def how(fit: Fit) -> str:
    """A sentence on how it is cast."""
    of = fit.row.operand
    parts = [of.format, f"a scale for each {of.granularity}" if of.granularity else "", of.source, of.recipe]
    if of.history:
        parts.append(f"amax history of {of.history} {'entry' if of.history == 1 else 'entries'}")
    return f"It is cast to {', '.join(part for part in parts if part)}."


FILTER = "    return fqn not in keep and all(size % 16 == 0 for size in module.weight.shape)\n"
"""What the products of float8 ask of a layer besides."""


def in_bfloat16(fit: Fit, because: str) -> Remedy:
    """What keeps one layer out of low precision, in the library that casts it."""
    of = fit.row.operand
    if of.source == "TransformerEngine":
        code = (
            "import transformer_engine.pytorch as te\n\n"
            f"def in_bfloat16(layer, *inputs):  # in the place of the call of {of.fqn}\n"
            "    with te.fp8_autocast(enabled=False):\n        return layer(*inputs)"
        )
    elif of.source.startswith("torchao"):
        code = (
            "from torchao.float8 import convert_to_float8_training\n\n"
            f"keep = {{{of.fqn!r}}}\n\ndef is_cast(module, fqn):\n{FILTER}\n"
            "convert_to_float8_training(model, module_filter_fn=is_cast)"
        )
    else:
        code = ""
    return Remedy(f"Or keep {of.fqn} in bfloat16.", code, because)


CURRENT = (
    "import transformer_engine.pytorch as te\n"
    "from transformer_engine.common.recipe import Float8CurrentScaling\n\n"
    "def in_fp8(model, *inputs):\n"
    "    with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):\n        return model(*inputs)"
)
"""A forward whose scales are made of the step itself."""


def delayed(arguments: str) -> str:
    """A recipe of delayed scaling with these arguments, as code."""
    return f"from transformer_engine.common.recipe import DelayedScaling\n\nrecipe = DelayedScaling({arguments})"
