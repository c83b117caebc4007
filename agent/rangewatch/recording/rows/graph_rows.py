"""Rows that the reads of captured CUDA graphs are merged into, one a tensor: memory that stays where it is.

A replay calls no hook: it launches again what was captured, with the same addresses. So a captured read has a row of
its own, not one of the open step, and counts its calls and elements itself. Where a step ends the rows are copied
aside, and begin anew; both are queued on the stream of the training, behind its replays. A replay on another stream
that is not waited for before the step ends is counted in the next step, or in part in each.

What was captured may be replayed after `detach`, and then writes here still: memory that a graph knows is never freed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.statistics.reduce import COLUMNS, fill_identities

COUNTS = ("call_count", "numel")
"""The two columns behind `reduce.COLUMNS`."""

_captured: list[Tensor] = []


class GraphRows:
    """Those of one device. Make it before a capture, whose own memory is the graph's to use again."""

    def __init__(self, device: torch.device) -> None:
        shape = limits.GRAPH_TENSORS, len(COLUMNS) + len(COUNTS)
        self._rows = torch.zeros(shape, dtype=torch.float64, device=device)
        fill_identities(self._rows[:, : len(COLUMNS)])
        self._fresh = self._rows.clone()
        self._places: dict[int, int] = {}
        self._ended: list[tuple[int, Tensor]] = []

    @property
    def numbers(self) -> tuple[int, ...]:
        """The tensors that graphs read, in the order of their rows."""
        return tuple(self._places)

    def row(self, number: int) -> Tensor | None:
        """The row of a tensor, (`COLUMNS` and `COUNTS`,), that a capture may write to; None when none is left."""
        place = self._places.get(number, len(self._places))
        return self._rows[place] if place < len(self._rows) else None

    def keep(self, number: int) -> None:
        """A graph writes to the row of this tensor, from now on."""
        if not self._places:
            _captured.append(self._rows)
        self._places.setdefault(number, len(self._places))

    def end_step(self, slot: int) -> None:
        """Queue the copy of what the replays of the step in this slot have written; the rows begin anew behind it."""
        count = len(self._places)
        if count:
            self._ended.append((slot, self._rows[:count].clone()))
            self._rows[:count].copy_(self._fresh[:count])

    def take(self) -> tuple[list[int], Tensor | None]:
        """Slots, and their rows on the device: (slots, `numbers`, columns), those that came later being whole rows of
        identities in older slots. Begins anew."""
        ended, self._ended = self._ended, []
        if not ended:
            return [], None
        count = len(ended[-1][1])
        padded = [torch.cat([rows, self._fresh[len(rows) : count]]) for _, rows in ended]
        return [slot for slot, _ in ended], torch.stack(padded)
