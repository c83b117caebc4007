"""Infinities that are meant, as in an attention mask: taken out of the counts, and said once."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rangewatch.recording.rows.step_buffer import POSITIONS, Block
from rangewatch.wire.records import Event, TensorEntry

if TYPE_CHECKING:  # it needs torch, which the watcher has not
    from rangewatch.recording.tensor_names import TensorNames


class AllowedInf:
    """Knows the tensors of the catalogue whose Inf is allowed. Used by one thread alone."""

    def __init__(self, patterns: tuple[str, ...], names: TensorNames) -> None:
        self._patterns, self._names = patterns, names
        self._allowed: list[int] = []
        self._matched_count = 0
        self._reported: set[int] = set()

    def take_out(self, block: Block, tensor_count: int) -> tuple[Event, ...]:
        """Set `inf_count` of allowed tensors to 0; an event for each in which there is Inf for the first time."""
        if not self._patterns or not len(block.steps):
            return ()
        self._match_new(tensor_count)
        counts = block.rows[POSITIONS["inf_count"]]
        with_inf = [number for number in self._allowed if number < counts.shape[1] and counts[:, number].any()]
        events = tuple(self._event(block, number) for number in with_inf if number not in self._reported)
        self._reported.update(with_inf)
        counts[:, with_inf] = 0.0
        nan_counts, seen_ns = (block.rows[POSITIONS[name]] for name in ("nan_count", "nonfinite_ns"))
        seen_ns[:, with_inf] = np.where(nan_counts[:, with_inf] > 0, seen_ns[:, with_inf], np.inf)
        return events

    def numbers(self, tensor_count: int) -> NDArray[np.bool_]:
        """Of the first `tensor_count` tensors, whether Inf is allowed: (tensor_count,) bool."""
        self._match_new(tensor_count)
        allowed = np.zeros(tensor_count, bool)
        allowed[[number for number in self._allowed if number < tensor_count]] = True
        return allowed

    def _match_new(self, tensor_count: int) -> None:
        for number in range(self._matched_count, tensor_count):
            if any(_matches(self._names.entries[number], pattern) for pattern in self._patterns):
                self._allowed.append(number)
        self._matched_count = max(self._matched_count, tensor_count)

    def _event(self, block: Block, number: int) -> Event:
        counts = block.rows[POSITIONS["inf_count"]][:, number]
        row = int(np.flatnonzero(counts)[0])
        entry = self._names.entries[number]
        data = {"fqn": entry.fqn, "kind": entry.kind, "index": entry.index, "inf_count": int(counts[row])}
        return Event("allowed_inf", time.time_ns(), int(block.steps[row]), _label(entry), data)


MODEL = "(model)"
"""What the pages call the model itself, whose name is empty."""


def _matches(entry: TensorEntry, pattern: str) -> bool:
    names = [entry.fqn, _label(entry)] + ([] if entry.fqn else [MODEL, f"{MODEL}{_label(entry)}"])
    return pattern in names or any(fnmatchcase(each, pattern) for each in names)


def _label(entry: TensorEntry) -> str:
    return f"{entry.fqn}:{entry.kind}:{entry.index}"
