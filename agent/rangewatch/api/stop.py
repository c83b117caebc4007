"""Stops training when `attach` was asked to: at a NaN or Inf, or after a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rangewatch.core.guard import TrainingStopped
from rangewatch.core.options import Options
from rangewatch.recording.nonfinite.allowed_inf import AllowedInf
from rangewatch.recording.observer import Observer
from rangewatch.recording.rows.step_buffer import POSITIONS, Block, StepBuffer
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.records import FloatArray, RankInfo, TensorEntry

_SCALED = {"grad", "grad_output", "reduced_grad"}


class NumericOverflow(TrainingStopped):
    """A NaN or Inf was recorded and `on_overflow="raise"`."""


class Stopper:
    """Says what training is to be stopped by, each once: a loop that goes on afterwards knows what it does.

    What is in host memory is seen at once; what an accelerator holds when the sender's thread has it, so that
    training never waits.
    """

    def __init__(self, options: Options, info: RankInfo, names: TensorNames, buffer: StepBuffer, observer: Observer):
        self._info, self._names, self._buffer, self._observer = info, names, buffer, observer
        self.is_loss_scaled = info.loss_scaled
        self._raises, self._last_step = options.on_overflow == "raise", options.abort_after_batch_num
        self._allowed = AllowedInf(options.allow_inf, names)
        self._late: str | None = None
        self._asked: str | None = None

    def overflow(self, step: int) -> NumericOverflow | None:
        """When the open step, or an earlier one on an accelerator, holds a NaN or Inf."""
        if not self._raises:
            return None
        message = self._late
        if message is None and self._observer.host.saw_nonfinite:
            message = self._explain_open_step(step)
        if message is None:
            return None
        self._raises = False
        return NumericOverflow(message)

    def ask(self, reason: str) -> None:
        """Training is to be stopped after the open step."""
        self._asked = reason

    def after(self, step: int) -> TrainingStopped | None:
        """`step` is closed: when it is the one to stop after."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            return TrainingStopped(asked)
        last, self._last_step = self._last_step, None
        if last is None or step < last:
            self._last_step = last
            return None
        return TrainingStopped(f"rangewatch: stopped after step {step}, as abort_after_batch_num={last} asks")

    def read_block(self, block: Block) -> None:
        """Steps as they are shipped, with what came from accelerators. Called by the sender's thread."""
        if self._raises and self._late is None:
            # Allowed Inf is taken out already.
            self._late = self._explain(block, np.zeros(block.rows.shape[2], bool))

    def _explain_open_step(self, step: int) -> str | None:
        row = self._buffer.row
        allowed = self._allowed.numbers(len(row))
        # Infinities that are meant come at every step: only the two counts are looked at for them.
        if not (np.array(row.nan_count).any() or np.array(row.inf_count)[~allowed].any()):
            return None
        rows = np.array(list(row.columns.values()))
        return self._explain(Block(np.array([step]), rows[:, np.newaxis, :], {}), allowed)

    def _explain(self, block: Block, allowed: NDArray[np.bool_]) -> str | None:
        """A line on the tensor that was bad first in the first bad step; None when all is finite."""
        nan_count, inf_count = (block.rows[POSITIONS[name]] for name in ("nan_count", "inf_count"))
        entries = self._names.entries
        for row, step in enumerate(block.steps):
            bad = np.flatnonzero(nan_count[row] + np.where(allowed, 0.0, inf_count[row]))
            seen_ns = block.rows[POSITIONS["nonfinite_ns"], row]
            ordered = sorted((seen_ns[n], entries[n].call_index, int(n)) for n in bad if self._counts(entries[n]))
            if ordered:
                return self._message(int(step), ordered[0][-1], block.rows[:, row, ordered[0][-1]])
        return None

    def _counts(self, entry: TensorEntry) -> bool:
        return entry.kind not in _SCALED or not self.is_loss_scaled

    def _message(self, step: int, number: int, values: FloatArray) -> str:
        entry = self._names.entries[number]
        numel, nan_count, inf_count, amax = (
            values[POSITIONS[name]] for name in ("numel", "nan_count", "inf_count", "amax")
        )
        index = f"[{entry.index}]" if entry.index else ""
        return (
            f"rangewatch: NaN or Inf in step {step} on rank {self._info.rank}, first in {entry.kind}{index} of "
            f"{entry.fqn or 'the model'} ({entry.module}, {entry.dtype}): {nan_count:.0f} NaN and {inf_count:.0f} Inf "
            f"of {numel:.0f} elements, the largest finite magnitude is {amax:.3g}. "
            f"`rangewatch report {self._info.run!r} --step {step} --rank {self._info.rank}` shows what came before."
        )
