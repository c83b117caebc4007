"""The loss scale over a run: every step at which it changed or that was skipped, found from coarse columns down.

A change costs a few columns of each level, so that the newest of a run of a million steps are had without reading it.
The scale is one rank's: scalers of one job agree. Skips are those of all ranks.

How scalers are set to change their scale, as a rank's agent reported: event `scaler` of docs/wire.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.events import Scaler
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, level_for
from rangewatch_server.numerics.whole import whole_sum
from rangewatch_server.query.reader import RunReader, last_step

Array = NDArray[Any]

SCAN_COLUMNS = 512
"""Columns that the whole range is first examined in."""

LEVELS_DOWN = 2
"""Levels between two looks: 64 columns, a tile."""

NEXT_STEPS = 64
"""Steps after a change in which the next scale is searched for, where some were not recorded."""

MOST_SCALERS = 8
MOST_RECENT = 128
"""Changes that rules look at: 64 times of growth and fall, or the last steps of a collapse."""
SKIPPED = "skipped_step"
_NAME = re.compile(r"loss_scale(?:/(\d{1,3}))?", re.ASCII)


class Scale(msgspec.Struct, frozen=True):
    """What one scaler multiplied the loss by at a step, and at the next one that is known."""

    scaler: str
    before: float | None
    after: float | None

    @property
    def fell(self) -> bool:
        """Whether the next step has a smaller one."""
        return self.before is not None and self.after is not None and self.after < self.before

    @property
    def grew(self) -> bool:
        """Whether the next step has a larger one."""
        return self.before is not None and self.after is not None and self.after > self.before


class Change(msgspec.Struct, frozen=True):
    """A step that was skipped, or after which a scale is another."""

    step: int
    skipped: bool
    scales: tuple[Scale, ...]

    @property
    def fell(self) -> bool:
        """Whether any scale did."""
        return any(each.fell for each in self.scales)

    def of(self, scaler: str) -> Scale:
        """One scaler's."""
        return next((each for each in self.scales if each.scaler == scaler), Scale(scaler, None, None))


class Columns(msgspec.Struct, frozen=True):
    """Columns of `8 ** level` steps from column `first` on. `low`, `high`: scaler -> (n,), NaN where none was reported.

    `skipped`: (n,) bool, any step on any rank; `taken`: any that was not skipped.
    """

    level: int
    first: int
    low: dict[str, Array]
    high: dict[str, Array]
    skipped: Array
    taken: Array


def scaler_names(run: RunReader) -> tuple[str, ...]:
    """Series of the scalers of a run, the first one's first."""
    numbered = [(int(match[1] or 0), name) for name in run.names().series if (match := _NAME.fullmatch(name))]
    return tuple(name for _, name in sorted(numbered)[:MOST_SCALERS])


class History:
    """Loss scales over the steps [start, stop) of a run.

    What a step changed the scale to is looked for in the steps before `known_stop` (default: `stop`).
    """

    def __init__(self, run: RunReader, start: int, stop: int, known_stop: int | None = None) -> None:
        self.run, self.start, self.stop = run, start, stop
        self._known_stop = stop if known_stop is None else max(stop, known_stop)
        self.scalers = scaler_names(run)
        self.ranks = sorted(run.ranks)

    @cached_property
    def rank(self) -> int | None:
        """Whose scale it is: of those that got farthest the lowest."""
        ends = {rank: step for rank in self.ranks if (step := last_step(self.run.ranks[rank])) is not None}
        return min(ends, key=lambda rank: (-ends[rank], rank), default=None)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Steps in the range at which that rank, or a later process of it, began; ascending."""
        streams = () if self.rank is None else self.run.ranks[self.rank].visible()
        return tuple(sorted({max(self.start, row.first_step) for row, _ in streams if row.first_step < self.stop}))

    @cached_property
    def skipped_steps(self) -> int:
        """How many steps that rank skipped."""
        if SKIPPED not in self.run.names().series or self.rank is None or self.start >= self.stop:
            return 0
        rows = np.array([self.run.names().series[SKIPPED]])
        level = level_for(self.stop - self.start, SCAN_COLUMNS)
        block = self.run.slice(SERIES_PART, [self.rank], level, self.start, self.stop, ["sum"], rows)
        return whole_sum(block.columns["sum"])

    def changes(self, *, newest: bool = True, stop: int | None = None) -> Iterator[Change]:
        """Steps of the range (before `stop`) at which a scale changed or that were skipped, in order of steps.

        A change in history that was thinned is left out: its step is not known.
        """
        end = self.stop if stop is None else min(stop, self.stop)
        for columns, shown in self._down(
            _has_change, level_for(end - self.start, SCAN_COLUMNS), self.start, end, newest
        ):
            places = np.flatnonzero(_has_change(columns)[:shown])
            for place in reversed(places) if newest else places:
                scales = tuple(
                    Scale(name, _first_known(line[place : place + 1]), _first_known(line[place + 1 :]))
                    for name, line in columns.low.items()
                )
                if columns.skipped[place] or any(each.fell or each.grew for each in scales):
                    yield Change(columns.first + int(place), bool(columns.skipped[place]), scales)

    @cached_property
    def recent(self) -> tuple[Change, ...]:
        """The newest `MOST_RECENT` changes, ascending."""
        return tuple(reversed(list(islice(self.changes(), MOST_RECENT))))

    def last(self, scaler: str) -> float | None:
        """A scaler's newest value, in the last steps of the range."""
        line = self.columns(0, max(self.start, self.stop - NEXT_STEPS), self.stop).high[scaler]
        known = line[~np.isnan(line)]
        return float(known[-1]) if len(known) else None

    def last_taken(self, stop: int) -> int | None:
        """The last step before `stop` that no rank skipped."""
        level = level_for(stop - self.start, SCAN_COLUMNS)
        for columns, shown in self._down(lambda each: each.taken, level, self.start, stop, True):
            taken = np.flatnonzero((columns.taken & ~columns.skipped)[:shown])
            if len(taken):
                return columns.first + int(taken[-1])
        return None

    def coarse(self, start: int | None = None, stop: int | None = None) -> Columns:
        """The steps [start, stop), merged to about `SCAN_COLUMNS`."""
        low, high = self.start if start is None else start, self.stop if stop is None else stop
        return self.columns(level_for(high - low, SCAN_COLUMNS), low, high)

    def columns(self, level: int, start: int, stop: int) -> Columns:
        """The steps [start, stop) at `level`."""
        first = start // FANOUT**level
        width = max(0, -(-stop // FANOUT**level) - first)
        both = [*self.scalers, SKIPPED]
        own = self._read([] if self.rank is None else [self.rank], both, level, start, stop, width)
        skips = own if len(self.ranks) < 2 else self._read(self.ranks, [SKIPPED], level, start, stop, width)
        low, high = ({name: each[name] for name in self.scalers} for each in own)
        return Columns(level, first, low, high, skips[1][SKIPPED] > 0, skips[0][SKIPPED] <= 0)

    def _read(
        self, ranks: Sequence[int], wanted: Sequence[str], level: int, start: int, stop: int, width: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The least and the largest of each series, (n,) each; NaN where there was none."""
        known = {name: place for name, place in self.run.names().series.items() if name in wanted}
        low, high = ({name: np.full(width, np.nan) for name in wanted} for _ in range(2))
        if known and len(ranks) and width:
            rows = np.sort(list(known.values()))
            block = self.run.slice(SERIES_PART, ranks, level, start, stop, ("min", "max"), rows)
            for name, place in known.items():
                row = int(np.searchsorted(rows, place))
                for values, column in ((low, block.columns["min"][row]), (high, block.columns["max"][row])):
                    values[name] = np.where(np.isfinite(column), column, np.nan)
        return low, high

    def _down(
        self, wanted: Callable[[Columns], Array], level: int, start: int, stop: int, newest: bool
    ) -> Iterator[tuple[Columns, int]]:
        """Single steps of the columns that are `wanted`, a few at a time, in order; of each the first so many count.

        What comes after them shows a fall to it.
        """
        if start >= stop or self.rank is None:
            return
        deadline.check()
        after = FANOUT**level if level else NEXT_STEPS
        columns = self.columns(level, start, min(self._known_stop, stop + after))
        shown = -(-stop // FANOUT**level) - columns.first
        places = np.flatnonzero(wanted(columns)[:shown])
        if level == 0:
            if len(places):
                yield columns, shown
            return
        for place in reversed(places) if newest else places:
            at = columns.first + int(place)
            ends = max(start, at * FANOUT**level), min(stop, (at + 1) * FANOUT**level)
            yield from self._down(wanted, max(0, level - LEVELS_DOWN), *ends, newest)


def _has_change(columns: Columns) -> Array:
    """(n,) bool: columns with a skip, with several scales, or after which there is another."""
    wanted: Array = columns.skipped.copy()
    for name, low in columns.low.items():
        high = columns.high[name]
        wanted |= high > low
        known = np.flatnonzero(~np.isnan(low))
        wanted[known[:-1]] |= (low[known[1:]] != high[known[:-1]]) | (high[known[1:]] != high[known[:-1]])
    return wanted


def _first_known(line: Array) -> float | None:
    known = line[~np.isnan(line)]
    return float(known[0]) if len(known) else None


MOST_EVENTS = 64
"""The newest that are examined: each of at most eight scalers says it when it begins, and when it is changed."""


def scalers(run: RunReader, rank: int | None) -> dict[str, Scaler]:
    """Series -> how its scaler was set last in the rank's last process."""
    if rank is None or not run.ranks[rank].streams:
        return {}
    by_series: dict[str, Scaler] = {}
    for event in run.events(Scaler.KIND, MOST_EVENTS, stream_id=run.ranks[rank].streams[-1].id):
        if (scaler := event.read(Scaler)) is not None:
            by_series.setdefault(scaler.series, scaler)
    return by_series
