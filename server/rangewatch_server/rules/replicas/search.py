"""Which replicas differ, since which step, and how the ranks fall into those that agree: by their checksums.

All ranks merged have the largest and the smallest checksum of each single step: where they are the same number all are
alike, so one stream shows it, however many ranks there are. Ranks themselves are asked at the one step that counts.
What has come to differ stays so, and the first step is found by halving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence

LARGEST, SMALLEST = "checksum_max", "checksum_min"
"""One reading sets both, see `statistics`."""


class Difference(msgspec.Struct, frozen=True):
    """A tensor's replicas: alike at the step `alike` (None: at none that is stored), and not at `step`, the next read.

    `groups`: ranks that hold the same, the largest group first. `per`: steps that share the row of `step`. `axes`:
    those of the mesh along which they should be alike, none where all ranks should. Then `groups` are of the ranks of
    one line along them, `also` are some of the other lines in which ranks differ, and `lines` is how many lines there
    are, in `odd_lines` of which ranks differ.
    """

    tensor: int
    step: int
    alike: int | None
    groups: tuple[tuple[int, ...], ...]
    per: int = 1
    axes: tuple[str, ...] = ()
    also: tuple[tuple[int, ...], ...] = ()
    lines: int = 1
    odd_lines: int = 1

    @property
    def is_everywhere(self) -> bool:
        """Whether ranks differ in each of several lines."""
        return 1 < self.lines == self.odd_lines

    @property
    def lines_of(self) -> tuple[int, ...]:
        """All ranks of `groups`."""
        return tuple(sorted(rank for group in self.groups for rank in group))

    @property
    def majority(self) -> tuple[int, ...]:
        """More than half of the ranks; none where no group has that many."""
        largest = self.groups[0]
        return largest if 2 * len(largest) > sum(map(len, self.groups)) else ()

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that are not of the majority; none where there is no majority."""
        return tuple(sorted(rank for group in self.groups[1:] for rank in group)) if self.majority else ()


class Incarnation(msgspec.Struct, frozen=True):
    """Which start of a rank's process is shown at the last step, and from which step on."""

    ordinal: int
    first_step: int


def incarnations(evidence: Evidence) -> Mapping[int, Incarnation]:
    """By rank, of those that have reported any step."""
    by_rank: Mapping[int, Incarnation] = evidence.once("incarnations", lambda: _incarnations(evidence))
    return by_rank


def _incarnations(evidence: Evidence) -> dict[int, Incarnation]:
    by_rank = {}
    for rank in evidence.ranks:
        rows = (row for row, _ in evidence.run.ranks[rank].visible() if row.first_step < evidence.whole_stop)
        newest = next(rows, None)
        if newest is not None:
            by_rank[rank] = Incarnation(newest.ordinal, newest.first_step)
    return by_rank


def groups_of(
    evidence: Evidence, started: Mapping[int, Incarnation], tensor: int, step: int
) -> tuple[tuple[int, ...], ...]:
    """Ranks by what they hold of a tensor at a step, the largest group first.

    Only of those that were started equally often, which most are: one that has been started anew reports steps again
    that the others' older processes reported, and these say nothing of it.
    """
    held: dict[float, list[int]] = {}
    for rank in _started_alike(started):
        deadline.check()
        row = evidence.row(tensor, rank, step, step + 1, (LARGEST, SMALLEST))
        if row[LARGEST][0] > 0 and row[LARGEST][0] == row[SMALLEST][0]:
            held.setdefault(float(row[LARGEST][0]), []).append(rank)
    return tuple(sorted(map(tuple, held.values()), key=lambda group: (-len(group), group)))


def _started_alike(started: Mapping[int, Incarnation]) -> list[int]:
    ordinals = [each.ordinal for each in started.values()]
    usual = max(ordinals, key=lambda each: (ordinals.count(each), each))
    return [rank for rank, each in started.items() if each.ordinal == usual]


MOST_TENSORS = 8
"""Tensors of those that differ whose first step is searched for."""

FAR = 4_096
"""Steps before the last in which each tensor's newest checksum is searched for, and steps without any to pass."""

LEVEL = 2
"""Of the pyramid, whose columns say in which single steps there are any."""


class Replicas:
    """A run's checksums, of all ranks merged, since the last of them was started. `COLUMNS`: of these the first is more
    than 0 where a checksum was taken."""

    COLUMNS: tuple[str, str] = (LARGEST, SMALLEST)

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        known = evidence.run.names().fill[RANGES]
        kinds = [KINDS.index("grad"), KINDS.index("reduced_grad")]
        has_any = set(self.COLUMNS) <= set(known) and len(evidence.ranks) > 1
        self._rows = np.flatnonzero(np.isin(evidence.tensors.kind_rows, kinds)) if has_any else np.zeros(0, np.int64)
        self._started = incarnations(evidence)
        self.start = max((each.first_step for each in self._started.values()), default=0)
        self.stop = evidence.whole_stop
        self.kind_rows = evidence.tensors.kind_rows
        self.compared: set[int] = set()
        """Tensors that had a checksum in the steps that `differing` looked at."""

    def differing(self) -> dict[int, int]:
        """Tensor -> the first step that was examined in which its replicas differ: each one's newest checksums."""
        first_steps: dict[int, int] = {}
        for start, stop in self._newest_windows():
            is_read, differs = self._read(self._rows, start, stop)
            self.compared |= set(self._rows[is_read.any(axis=1)].tolist())
            for at in np.flatnonzero(differs.any(axis=1)):
                first_steps.setdefault(int(self._rows[at]), start + int(differs[at].argmax()))
        return first_steps

    def newest_steps(self) -> dict[int, int]:
        """Tensor -> the last step at which its checksum was read, of those that have any in the last `FAR` steps."""
        newest: dict[int, int] = {}
        for start, stop in self._newest_windows():  # ascending: a later window's counts
            is_read, _ = self._read(self._rows, start, stop)
            for at in np.flatnonzero(is_read.any(axis=1)).tolist():
                newest[int(self._rows[at])] = stop - 1 - int(is_read[at, ::-1].argmax())
        return newest

    def _newest_windows(self) -> Iterator[tuple[int, int]]:
        """Steps in which the newest checksum of any tensor lies, and the last ones, ascending."""
        if not len(self._rows) or self.start >= self.stop:
            return
        width, low = FANOUT**LEVEL, max(self.start, self.stop - FAR)
        block = self._evidence.run.slice(
            RANGES, list(self._evidence.ranks), LEVEL, low, self.stop, self.COLUMNS[:1], self._rows
        )
        has_any = np.asarray(block.columns[self.COLUMNS[0]]) > 0
        columns = {int(each) for each in has_any.shape[1] - 1 - has_any[has_any.any(axis=1), ::-1].argmax(axis=1)}
        recent = (self.stop - WINDOW) // width - block.first
        columns |= {int(each) for each in np.flatnonzero(has_any.any(axis=0)) if each >= recent}
        for column in sorted(columns):
            start = (block.first + column) * width
            yield max(start, low), min(start + width, self.stop)

    def difference(self, tensor: int, step: int) -> Difference | None:
        """Since when, given that the replicas differ at `step`; None where the ranks themselves do not say so."""
        first, alike = self._first(tensor, step)
        groups = groups_of(self._evidence, self._started, tensor, first)
        if len(groups) < 2:
            return None
        per = self._evidence.run.steps_a_row(self._evidence.ranks, first, first + 1)
        return Difference(tensor, first, alike, groups, per)

    def _first(self, tensor: int, step: int) -> tuple[int, int | None]:
        """The first step that differs, and the last one before that is alike."""
        good, bad, alike = self.start - 1, step, None
        while bad - good > 1:
            deadline.check()
            middle = (good + bad) // 2
            newest = self._newest(tensor, good + 1, middle + 1)
            if newest is None:
                good = middle
            elif newest[1]:
                bad = newest[0]
            else:
                good, alike = middle, newest[0]
        return bad, alike

    def _newest(self, tensor: int, start: int, stop: int) -> tuple[int, bool] | None:
        """The last of the steps [start, stop) that has a checksum, and whether replicas differ there."""
        low, span = max(start, stop - FAR), WINDOW // 4
        while stop > low:
            first = max(low, stop - span)
            is_read, differs = self._read(np.array([tensor]), first, stop)
            places = np.flatnonzero(is_read[0])
            if places.size:
                at = int(places[-1])
                return first + at, bool(differs[0, at])
            stop, span = first, 4 * span
        return None

    def started_alike(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks that were started equally often, which most are."""
        alike = set(_started_alike(self._started))
        return [rank for rank in ranks if rank in alike]

    def gradient_of(self, tensor: int) -> int | None:
        """The tensor that is the reduced gradient of a parameter, where it was recorded."""
        entries = self._evidence.tensors.entries
        fqn = entries[tensor].fqn
        same = (row for row in self._rows.tolist() if entries[row].fqn == fqn)
        return next((row for row in same if entries[row].kind == "reduced_grad"), None)

    def differ_in(self, tensor: int, start: int, stop: int) -> bool | None:
        """Whether replicas differ at any of the steps [start, stop); None where there is no checksum."""
        is_read, differs = self._read(np.array([tensor]), max(self.start, start), stop)
        return bool(differs.any()) if is_read.any() else None

    def _read(self, rows: Array, start: int, stop: int) -> tuple[Array, Array]:
        """(rows, steps) each, of all ranks: whether there is a checksum, and whether ranks differ."""
        if start >= stop:
            return np.zeros((len(rows), 0), bool), np.zeros((len(rows), 0), bool)
        columns = self._evidence.run.slice(
            RANGES, list(self._evidence.ranks), 0, start, stop, self.COLUMNS, rows
        ).columns
        first, second = (np.asarray(columns[name]) for name in self.COLUMNS)
        return first > 0, (first > 0) & self._differ(first, second)

    def _differ(self, first: Array, second: Array) -> Array:
        return first != second


def differences(replicas: Replicas) -> tuple[dict[int, int], list[Difference]]:
    """All tensors that differ, as `differing` has them, and of some of them since when; the earliest first."""
    first_steps = replicas.differing()
    reduced = KINDS.index("reduced_grad")

    def order(tensor: int) -> tuple[bool, int]:
        """Parameters that differ make gradients differ in the same step. A gradient that differs makes those of all
        layers before it differ: the one next to the loss comes first."""
        is_gradient = bool(replicas.kind_rows[tensor] == reduced)
        return is_gradient, -tensor if is_gradient else tensor

    tensors = sorted(first_steps, key=lambda tensor: (first_steps[tensor], *order(tensor)))
    every = -(-len(tensors) // MOST_TENSORS) or 1
    known = [
        each for tensor in tensors[::every] if (each := replicas.difference(tensor, first_steps[tensor])) is not None
    ]
    return first_steps, sorted(known, key=lambda each: (each.step, *order(each.tensor)))
