"""In which steps something is wrong, by what is cheap to see in blocks of closed steps: their rows are sent."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch.core import limits
from rangewatch.recording.logged_values import LOSS_NAMES
from rangewatch.recording.rows.step_buffer import POSITIONS, Block
from rangewatch.recording.tensor_names import TensorNames

NORM_NAMES = frozenset({"grad_norm", "train/grad_norm", "gradient_norm", "total_norm", "grad_norm/train"})
"""What loops call the norm of all gradients."""

_GRADIENTS = ("grad", "reduced_grad")

OUTLIER = 2.0**12
"""How many times the largest magnitude before it an output must be: a normalisation may hide it from loss and
gradients."""


class Band:
    """What a value has been in the last steps. A value far above it leaves it, one that follows such a value does not:
    the first of a spell is of interest."""

    def __init__(self, factor: float, deviations: float) -> None:
        self._factor, self._deviations = factor, deviations
        self._values: deque[float] = deque(maxlen=limits.BATCH_HISTORY)
        self._bar, self._age, self._is_out = np.inf, 0, False

    def leaves(self, value: float) -> bool:
        """Whether this value is the first of a spell above the band."""
        self._age += 1
        if len(self._values) >= limits.BATCH_HISTORY_LEAST and (value > self._bar or self._age >= 16):
            known = np.array(self._values)
            usual = float(np.median(known))
            scatter = 1.4826 * float(np.median(np.abs(known - usual)))
            self._bar, self._age = usual + max(self._factor * abs(usual), self._deviations * scatter), 0
        is_finite = math.isfinite(value)
        was_out, self._is_out = self._is_out, not is_finite or value > self._bar
        if is_finite:
            self._values.append(value)
        return self._is_out and not was_out


class OddSteps:
    """Which steps of a block something is wrong with, by what is cheap to see. By the sender's thread."""

    def __init__(self, names: TensorNames) -> None:
        self._names = names
        self._bands: dict[str, Band] = {}
        self._last_bad = np.full((2, 0), -2, np.int64)
        """The last step that each tensor held NaN in, and Inf: what is meant to be Inf is so in each step."""
        self._tensor_count, self._gradients = 0, np.zeros(0, np.int64)
        self._outputs = np.zeros(0, np.int64)
        self._highest, self._seen_steps = np.zeros(0), np.zeros(0, np.int64)
        """Of each output: its largest magnitude so far, and steps in which it had one."""
        self._scale = 1.0

    def of(self, block: Block) -> Iterator[tuple[int, str]]:
        """(step, why), ascending for each reason."""
        yield from self._nonfinite(block)
        for name, values in block.series.items():
            if name in LOSS_NAMES or name in NORM_NAMES:
                yield from self._out_of_band(name, values.items(), "loss" if name in LOSS_NAMES else "gradient")
        yield from self._out_of_band("grad", self._heights(block), "gradient")
        yield from self._outliers(block)

    def _nonfinite(self, block: Block) -> Iterator[tuple[int, str]]:
        bad = np.stack([block.rows[POSITIONS[name]] > 0 for name in ("nan_count", "inf_count")])
        if not bad.any():
            return
        if bad.shape[2] > self._last_bad.shape[1]:
            wider = np.full((2, bad.shape[2]), -2, np.int64)
            wider[:, : self._last_bad.shape[1]] = self._last_bad
            self._last_bad = wider
        last = self._last_bad[:, : bad.shape[2]]
        for at, step in enumerate(block.steps.tolist()):
            is_new = bad[:, at] & (last < step - 1)
            last[bad[:, at]] = step
            if is_new.any():
                yield step, "nonfinite"

    def _out_of_band(self, name: str, values: Iterable[tuple[int, float]], reason: str) -> Iterator[tuple[int, str]]:
        band = self._bands.get(name)
        if band is None:
            band = self._bands[name] = Band(0.2, 6.0) if reason == "loss" else Band(3.0, 6.0)
        for step, value in sorted(values):
            if band.leaves(value):
                yield step, reason

    def _find_kinds(self, count: int) -> None:
        if count != self._tensor_count:
            kinds = [entry.kind for entry in itertools.islice(self._names.entries, count)]
            self._tensor_count, self._gradients = count, np.flatnonzero([each in _GRADIENTS for each in kinds])
            self._outputs = np.flatnonzero([each == "output" for each in kinds])
            more = len(self._outputs) - len(self._highest)
            self._highest = np.concatenate([self._highest, np.zeros(more)])
            self._seen_steps = np.concatenate([self._seen_steps, np.zeros(more, np.int64)])

    def _outliers(self, block: Block) -> Iterator[tuple[int, str]]:
        """Steps with an output that is far larger than it has ever been."""
        self._find_kinds(block.rows.shape[2])
        if not len(self._outputs) or not len(block.steps):
            return
        amax = block.rows[POSITIONS["amax"]][:, self._outputs]
        highest = np.maximum.accumulate(np.vstack([self._highest, amax]), axis=0)
        seen = self._seen_steps + np.vstack([np.zeros_like(self._seen_steps), np.cumsum(amax > 0, axis=0)])
        is_usual = (seen[:-1] >= limits.BATCH_HISTORY_LEAST) & (highest[:-1] > 0)
        jumps = (is_usual & (amax > OUTLIER * highest[:-1])).any(axis=1)
        self._highest, self._seen_steps = highest[-1], seen[-1]
        for step in block.steps[jumps].tolist():
            yield step, "output"

    def _heights(self, block: Block) -> list[tuple[int, float]]:
        """The largest magnitude of any gradient, by step, without the loss scale."""
        self._find_kinds(block.rows.shape[2])
        if not len(self._gradients) or not len(block.steps):
            return []
        heights = block.rows[POSITIONS["amax"]][:, self._gradients].max(axis=1)
        scales = block.series.get("loss_scale", {})
        known: list[tuple[int, float]] = []
        for step, height in zip(block.steps.tolist(), heights.tolist(), strict=True):
            scale = scales.get(step, self._scale)
            self._scale = scale if scale > 0 else 1.0
            if height > 0:
                known.append((step, height / self._scale))
        return known
