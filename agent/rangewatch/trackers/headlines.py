"""The headline numbers: what each is, and how those of several steps become one row.

What this rank knows is computed of the blocks that go to the server; what only the server knows comes with its answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rangewatch.recording.rows.step_buffer import POSITIONS, Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics.dtype_limits import LIMITS


class Headline(NamedTuple):
    """`merge`: of the values of several steps in one row."""

    name: str
    merge: Callable[[float, float], float]
    help: str


def _last(before: float, now: float) -> float:
    return now


def _sum(before: float, now: float) -> float:
    return before + now


OF_RANK = (
    Headline("least_headroom_bits", min, "least headroom of this rank's tensors, in bits, as the pages show it"),
    Headline("nonfinite_values", _sum, "NaN and Inf in this rank's tensors since the last row"),
    Headline("gradient_norm", _last, "norm of this rank's gradients, without the loss scale; where all were read in "
                                     "full: on a CPU every `full_every` steps"),
    Headline("clipped_norm", max, "norm that `clip_grad_norm_` has computed, as the loop clips"),
    Headline("loss_scale", _last, "the loss scale"),
    Headline("skipped_steps", _last, "steps that the loss scaler has skipped since attach"),
    Headline("step_time_s", max, "the longest step's time, in seconds"),
    Headline("agent_time_s", max, "of a step, the time that the agent took, in seconds; the most"),
)  # fmt: skip
OF_SERVER = (
    Headline("open_alerts", _last, "alerts of the run that stand"),
    Headline("critical_alerts", _last, "of these, the critical ones"),
    Headline("gpus_in_trouble", _last, "GPUs of the run that are gone, throttled or have errors"),
    Headline("straggler_cost_s", _last, "seconds that a step takes longer for one rank or host; 0 where none is named"),
)
ALL = OF_RANK + OF_SERVER
_MERGES = {each.name: each.merge for each in ALL}
_SERIES = ("clipped_norm", "loss_scale", "step_time_s", "agent_time_s")


class Row:
    """Values of one step or several, by name; none that is not finite."""

    def __init__(self, step: int = -1) -> None:
        self.step = step
        self.values: dict[str, float] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Merge those of a step."""
        self.step = max(self.step, step)
        for name, value in values.items():
            if math.isfinite(value):
                known = self.values.get(name)
                self.values[name] = value if known is None else _MERGES[name](known, value)


class Headlines:
    """Of this rank's blocks. Called by the sender's thread."""

    def __init__(self, names: TensorNames, *, is_loss_scaled: bool) -> None:
        self._names, self.is_loss_scaled = names, is_loss_scaled
        self._log2_max = np.zeros(0)
        self._is_grad = np.zeros(0, bool)
        self._skipped: float | None = None

    def read(self, block: Block) -> Iterator[tuple[int, dict[str, float]]]:
        """Each step of the block that has a number, in order. A loss scale may come in a later block than its step."""
        by_step: dict[int, dict[str, float]] = {}
        for name in _SERIES:
            for step, value in block.series.get(name, {}).items():
                by_step.setdefault(step, {})[name] = value
        for step, found_inf in sorted(block.series.get("found_inf", {}).items()):
            self._skipped = (self._skipped or 0.0) + (found_inf > 0)
            by_step.setdefault(step, {})["skipped_steps"] = self._skipped
        self._add_rows(block, by_step)
        yield from sorted(by_step.items())

    def _add_rows(self, block: Block, by_step: dict[int, dict[str, float]]) -> None:
        count = block.rows.shape[2]
        if not len(block.steps) or not count:
            return
        self._learn(count)
        columns = {name: block.rows[POSITIONS[name]] for name in _NEEDED}
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.maximum(self._log2_max[:count] - np.log2(columns["amax"]), 0.0)
        has_bits = (columns["call_count"] > 0) & (columns["amax"] > 0) & np.isfinite(bits)
        least = np.where(has_bits, bits, np.inf).min(axis=1)
        bad = (columns["nan_count"] + columns["inf_count"]).sum(axis=1)
        is_grad = self._is_grad[:count] & (columns["call_count"] > 0)
        is_full = (columns["full_numel"] == columns["numel"]) | ~is_grad
        has_norm = is_grad.any(axis=1) & is_full.all(axis=1)
        norms = np.sqrt(np.where(is_grad, columns["sum_sq"], 0.0).sum(axis=1))
        for at, step in enumerate(block.steps.tolist()):
            values = by_step.setdefault(step, {})
            values["nonfinite_values"] = float(bad[at])
            if math.isfinite(least[at]):
                values["least_headroom_bits"] = float(least[at])
            scale = values.get("loss_scale") if self.is_loss_scaled else 1.0
            if has_norm[at] and scale and not bad[at]:
                values["gradient_norm"] = float(norms[at] / scale)

    def _learn(self, count: int) -> None:
        """Of tensors that have come since: NaN bits for a dtype whose limits are not known."""
        known = len(self._log2_max)
        if count > known:
            entries = [self._names.entries[number] for number in range(known, count)]
            limits = [LIMITS[each.dtype].max_finite if each.dtype in LIMITS else math.nan for each in entries]
            self._log2_max = np.append(self._log2_max, np.log2(limits))
            self._is_grad = np.append(self._is_grad, [each.kind == "grad" for each in entries])


_NEEDED = ("call_count", "amax", "nan_count", "inf_count", "numel", "full_numel", "sum_sq")
