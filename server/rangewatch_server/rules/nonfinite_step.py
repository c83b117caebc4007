"""One step of one rank, as the search for the first NaN or Inf looks at it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.records import KINDS
from rangewatch_server import origin
from rangewatch_server.pyramid import RANGES, SERIES_PART
from rangewatch_server.rules.evidence import BACKWARD, OPTIMIZER, Evidence

Array = NDArray[Any]

_COLUMNS = (*origin.COLUMNS, "numel", "amax")


class Bad(msgspec.Struct, frozen=True):
    """One rank's first bad tensor of a step."""

    step: int
    rank: int
    tensor: int
    call_index: int
    nan_count: int
    inf_count: int
    numel: int


class StepView:
    """The tensors of a rank at a step; `columns[name]`: (t,), in the order of `Evidence.tensors`.

    `without`: (t,) bool, tensors that count as finite.
    """

    def __init__(self, evidence: Evidence, rank: int, step: int, without: Array | None = None) -> None:
        self.evidence, self.rank, self.step = evidence, rank, step
        self.entries = evidence.tensors.entries
        wanted = [name for name in _COLUMNS if name in evidence.run.names().fill[RANGES]]
        block = evidence.run.slice(RANGES, [rank], 0, step, step + 1, wanted, np.arange(len(self.entries)))
        self.columns = {name: np.array(values[:, 0], np.float64) for name, values in block.columns.items()}
        if without is not None:
            for name in ("nan_count", "inf_count"):
                self.columns[name][without] = 0.0

    @cached_property
    def is_bad(self) -> Array:
        """(t,) bool: it held NaN or Inf."""
        return (self.columns["nan_count"] > 0) | (self.columns["inf_count"] > 0)

    def is_of(self, *kinds: str) -> Array:
        """(t,) bool: it was observed, and is of one of these kinds."""
        wanted = np.isin(self.evidence.tensors.kind_rows, [KINDS.index(kind) for kind in kinds])
        return wanted & (self.columns["call_count"] > 0)

    def in_order(self, chosen: Array) -> list[int]:
        """Ordinals of the chosen, (t,) bool, in call order."""
        found = np.flatnonzero(chosen)
        return [int(each) for each in found[np.argsort(self.evidence.tensors.position[found], kind="stable")]]

    def first(self) -> Bad | None:
        """The tensor that held NaN or Inf first; None when all are finite."""
        tensors = self.evidence.tensors
        at = origin.first_bad(self.columns, tensors.call_index, tensors.kind_rows)
        if at is None:
            return None
        counts = (int(self.columns[name][at]) for name in ("nan_count", "inf_count", "numel"))
        return Bad(self.step, self.rank, at, int(tensors.call_index[at]), *counts)

    def before(self, tensor: int, *kinds: str) -> list[int]:
        """Finite tensors of these kinds that come before this one in call order."""
        position = self.evidence.tensors.position
        return self.in_order(self.is_of(*kinds) & ~self.is_bad & (position < position[tensor]))

    def find(self, fqn: str, kind: str) -> list[int]:
        """Those of this module or parameter and kind that were observed."""
        return [each for each in self.in_order(self.is_of(kind)) if self.entries[each].fqn == fqn]

    def amax(self, tensor: int) -> float:
        """Its largest finite magnitude."""
        return float(self.columns["amax"][tensor])

    def loss(self) -> float | None:
        """The loss that was logged for the step, NaN and Inf too; None where none was."""
        if not self.evidence.has_series("loss"):
            return None
        run = self.evidence.run
        rows = np.array([run.names().series["loss"]])
        found = run.slice(SERIES_PART, [self.rank], 0, self.step, self.step + 1, ("count", "last"), rows)
        return float(found.columns["last"][0, 0]) if found.columns["count"][0, 0] > 0 else None

    def is_contained(self) -> bool:
        """Whether it held Inf alone, and neither its gradients nor its loss took it over, as with masks."""
        loss = self.loss()
        is_in_gradients = (self.is_of(*BACKWARD, *OPTIMIZER) & self.is_bad).any()
        is_seen = self.is_of(*BACKWARD).any()
        return bool(is_seen and not self.columns["nan_count"].any() and not is_in_gradients) and (
            loss is None or bool(np.isfinite(loss))
        )
