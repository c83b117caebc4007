"""What rules look at: a run as it was when it had reached a step, as arrays. Read once, however many rules ask.

Nothing here depends on a clock or on the order in which batches came: the same stored run gives the same arrays, and so
the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.events import Details
from rangewatch.wire.records import KINDS, MOMENTS, RankInfo
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, SUMMARY, level_for
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.query.inf_by_design import FIRST_STEPS
from rangewatch_server.query.reader import RunReader, last_step
from rangewatch_server.rules.loss_scale.history import History
from rangewatch_server.store.names import Tensors

Array = NDArray[Any]
D = TypeVar("D", bound=Details)

FORWARD = ("output", "input", "weight")
BACKWARD = ("grad_output", "grad")
OPTIMIZER = ("reduced_grad", "update", *MOMENTS)

WINDOW = 256
"""Steps that trends are judged by, up to the last: four tiles of a rank."""

SCAN_COLUMNS = 512
"""Columns that a scan of the whole run looks at first."""

FAR_STEPS = 64
"""A rank that is so many steps behind the first was left there: the others are not judged by what it lacks."""

MANY_RANKS = 16
"""Of more it is asked of all together first whether any is concerned."""

MOST_EVENTS = 5_000
"""Of one kind that rules look at."""


class Window(msgspec.Struct, frozen=True):
    """Single steps [start, stop) of all tensors: `columns[name]` is (t, n); t in the order of `Evidence.tensors`."""

    start: int
    stop: int
    columns: dict[str, Array]

    @property
    def steps(self) -> Array:
        """(n,) int64."""
        return np.arange(self.start, self.stop)


class Evidence:
    """A run's steps [start, stop). Default: from its first to behind the last step of any rank."""

    def __init__(self, run: RunReader, stop: int | None = None, start: int | None = None) -> None:
        is_early = start is None and stop is not None and stop < (run.first_step or 0) + FIRST_STEPS
        self.run = run.known_before(stop) if is_early and stop is not None else run
        end = 0 if run.last_step is None else run.last_step + 1
        self.start = (run.first_step or 0) if start is None else start
        self.stop = end if stop is None else max(self.start, min(stop, end))
        self.is_newest = self.stop >= end
        """Whether it is the run as it is now: what is known of the step in progress, as its end is, belongs to it."""
        self._kept: dict[Any, Any] = {}

    @cached_property
    def began_fresh(self) -> bool:
        """Whether it begins where weights were initialised: not of a run that went on from a checkpoint, or of steps
        further on."""
        is_first = not any(rank.rows[0].ordinal > 1 for rank in self.run.ranks.values())
        return is_first and not self.start and not self.run.first_step

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All that have reported, ascending."""
        return tuple(sorted(self.run.ranks))

    @cached_property
    def tensors(self) -> Tensors:
        """The run's tensors, by ordinal."""
        return self.run.names().tensors

    def info(self, rank: int) -> RankInfo:
        """What a rank's newest process said of itself."""
        return self.run.ranks[rank].info

    @cached_property
    def is_loss_scaled(self) -> bool:
        """Whether gradients are multiplied by a loss scale, which skips steps that overflow."""
        return self.run.is_loss_scaled(self.ranks)

    @cached_property
    def loss_scales(self) -> History:
        """The loss scale up to the last step that all ranks reported."""
        return History(self.run, self.start, self.whole_stop)

    @cached_property
    def whole_stop(self) -> int:
        """Behind the last step that all ranks have reported, but for those that were left behind."""
        ends = [1 + step for rank in self.ranks if (step := last_step(self.run.ranks[rank])) is not None]
        near = [min(end, self.stop) for end in ends if end > self.stop - FAR_STEPS]
        return min(near, default=self.stop)

    def window(
        self, wanted: Sequence[str], steps: int = WINDOW, stop: int | None = None, rank: int | None = None
    ) -> Window:
        """The last `steps` single steps before `stop` (default: that all ranks reported): of one rank, or all merged.

        A statistic that the run has not is left out.
        """
        end = self.whole_stop if stop is None else stop
        start = max(self.start, end - steps)
        names = tuple(name for name in wanted if name in self.run.names().fill[RANGES])
        return self.once(("window", names, start, end, rank), lambda: self._window(names, start, end, rank))

    def _window(self, wanted: tuple[str, ...], start: int, stop: int, rank: int | None) -> Window:
        rows = np.arange(len(self.tensors.entries))
        ranks = list(self.ranks) if rank is None else [rank]
        if not len(rows) or start >= stop or not ranks:
            return Window(start, stop, {name: np.zeros((len(rows), max(0, stop - start))) for name in wanted})
        block = self.run.slice(RANGES, ranks, 0, start, stop, wanted, rows)
        return Window(start, stop, {name: np.asarray(block.columns[name], np.float64) for name in wanted})

    def row(self, tensor: int, rank: int, start: int, stop: int, wanted: Sequence[str]) -> dict[str, Array]:
        """One tensor of one rank over the single steps [start, stop): (n,) each."""
        names = tuple(name for name in wanted if name in self.run.names().fill[RANGES])
        start = max(self.start, start)
        if start >= stop:
            return {name: np.zeros(0) for name in names}
        block = self.run.slice(RANGES, [rank], 0, start, stop, names, np.array([tensor]))
        return {name: np.asarray(block.columns[name][0], np.float64) for name in names}

    def series(self, name: str, start: int | None = None, stop: int | None = None, rank: int | None = None) -> Array:
        """(n,) values of the single steps; NaN where a step has none. Of all ranks: the mean where reported."""
        low = max(self.start, self.whole_stop - WINDOW) if start is None else max(self.start, start)
        high = self.whole_stop if stop is None else stop
        return self.once(("series", name, low, high, rank), lambda: self._series(name, low, high, rank))

    def _series(self, name: str, start: int, stop: int, rank: int | None) -> Array:
        names = self.run.names()
        if name not in names.series or start >= stop:
            return np.full(max(0, stop - start), np.nan)
        rows = np.array([names.series[name]])
        ranks = list(self.ranks) if rank is None else [rank]
        block = self.run.slice(SERIES_PART, ranks, 0, start, stop, ("count", "nonfinite_count", "sum"), rows)
        count, bad, total = (block.columns[each][0] for each in ("count", "nonfinite_count", "sum"))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / (count - bad)
        if (bad > 0).any():
            mean = np.where(bad > 0, self._bad_values(rows, ranks, start, stop, bad > 0), mean)
        return np.where(count > 0, mean, np.nan)

    def _bad_values(self, rows: Array, ranks: Sequence[int], start: int, stop: int, is_bad: Array) -> Array:
        """(n,) at each bad step the value, NaN or Inf, of the first rank that has one there.

        Ranks are not kept merged of the last values, and are read one by one until all are known: a loss that is bad on
        one is, as a rule, bad on the first.
        """
        values = np.full(stop - start, np.nan)
        for rank in ranks:
            if not is_bad.any():
                break
            block = self.run.slice(SERIES_PART, [rank], 0, start, stop, ("count", "nonfinite_count", "last"), rows)
            has = is_bad & (block.columns["nonfinite_count"][0] > 0)
            values[has], is_bad = block.columns["last"][0][has], is_bad & ~has
        return values

    def largest(self, name: str, start: int, stop: int, level: int = 0, rank: int | None = None) -> Array:
        """(n,) the largest value of any rank, or of one, in each column of `level`, at 0 each single step; -Inf where
        none reported one, NaN not counted. The first column is the one that the first step lies in."""
        names, low = self.run.names(), max(self.start, start)
        if name not in names.series or low >= stop:
            size = FANOUT**level
            return np.full(max(0, -(-stop // size) - low // size), -np.inf)
        rows = np.array([names.series[name]])
        ranks = list(self.ranks) if rank is None else [rank]
        block = self.run.slice(SERIES_PART, ranks, level, low, stop, ("max",), rows)
        return np.asarray(block.columns["max"][0], np.float64)

    def has_series(self, name: str) -> bool:
        """Whether any rank reported it."""
        return name in self.run.names().series

    @cached_property
    def reported_stop(self) -> int:
        """Behind the last step of every rank's reports, those left behind too: what comes later is of later steps."""
        ends = [last_step(self.run.ranks[rank]) for rank in self.ranks]
        return min((self.start if end is None else min(end + 1, self.stop) for end in ends), default=self.start)

    def bad_steps(self, kinds: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Steps with a NaN or Inf in tensors of these kinds, ascending, each with the ranks that held it."""
        if self.run.is_all_finite:
            return
        level = level_for(self.stop - self.start, SCAN_COLUMNS)
        yield from self._bad_steps([KINDS.index(kind) for kind in kinds], level, self.start, self.stop)

    def _bad_steps(self, kinds: list[int], level: int, start: int, stop: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        if start >= stop or not self.ranks:
            return
        deadline.check()
        if len(self.ranks) > MANY_RANKS and not self._has_bad(kinds, level, start, stop):
            return
        block = self.run.by_rank(self.ranks, level, start, stop, ("nan_count", "inf_count"))
        nonfinite = (block.columns["nan_count"] + block.columns["inf_count"]).reshape(len(self.ranks), len(KINDS), -1)
        bad = nonfinite[:, kinds].sum(axis=1) > 0
        for column in np.flatnonzero(bad.any(axis=0)):
            at = block.first + int(column)
            if level == 0:
                yield at, tuple(np.asarray(self.ranks)[bad[:, column]].tolist())
            else:
                low, high = max(start, at * FANOUT**level), min(stop, (at + 1) * FANOUT**level)
                yield from self._bad_steps(kinds, level - 1, low, high)

    def _has_bad(self, kinds: list[int], level: int, start: int, stop: int) -> bool:
        """Whether any rank held any: all of them are kept merged."""
        wanted = ("nan_count", "inf_count")
        block = self.run.slice(SUMMARY, list(self.ranks), level, start, stop, wanted, np.array(sorted(kinds)))
        return bool((block.columns["nan_count"] + block.columns["inf_count"] > 0).any())

    def events(self, *kinds: str) -> list[StoredEvent]:
        """Events of these kinds of all processes, by step and rank; of the run as it was, those before `stop`.

        Of each kind the newest `MOST_EVENTS`: whoever may send can send any number.
        """
        return self.once(("events", kinds), lambda: self._events(kinds))

    def details(self, kind: type[D], rank: int | None = None) -> list[tuple[StoredEvent, D]]:
        """The same of one kind with what its events hold, of all ranks or of one; those that cannot be read are left
        out.
        """
        return self.once(("details", kind, rank), lambda: self._details(kind, rank))

    def _details(self, kind: type[D], rank: int | None) -> list[tuple[StoredEvent, D]]:
        events = self.events(kind.KIND) if rank is None else self._events((kind.KIND,), rank)
        read = {data: event.read(kind) for data, event in {event.data: event for event in events}.items()}
        return [(event, known) for event in events if (known := read[event.data]) is not None]

    def _events(self, kinds: tuple[str, ...], rank: int | None = None) -> list[StoredEvent]:
        ordinals = self._ordinals
        before = None if self.is_newest else self.stop
        reported = [row for kind in kinds for row in self.run.events(kind, MOST_EVENTS, rank=rank, before=before)]
        # Numbers are given as messages arrive: of one process they are in its order, of several they say nothing.
        known = (event for event in reported if event.stream_id in ordinals)
        return sorted(known, key=lambda event: (event.step, event.rank, ordinals[event.stream_id], event.id))

    @cached_property
    def _ordinals(self) -> dict[int, int]:
        """Stream -> which start of its rank it is."""
        return {row.id: row.ordinal for each in self.run.ranks.values() for row in each.rows}

    def once(self, key: Any, read: Callable[[], Any]) -> Any:
        """What `read` gives, which is kept under `key` for whoever asks next."""
        if key not in self._kept:
            deadline.check()
            self._kept[key] = read()
        return self._kept[key]
