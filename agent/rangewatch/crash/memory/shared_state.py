"""Where a rank is, in memory that its watcher can read: the step, the phase, the last tensor, its collectives, and the
names that these numbers stand for.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from rangewatch.crash.memory import layout
from rangewatch.crash.memory.anonymous_file import IS_SUPPORTED, Log, Memory
from rangewatch.crash.memory.stored_steps import MemoryListener, StoredSteps
from rangewatch.recording.rows import mirror
from rangewatch.recording.rows.mirror import Collective, Group, Mirror
from rangewatch.wire.records import Event, TensorEntry

STEPS_FILE = "rangewatch-steps"
"""Name of the memory of the steps; /proc shows it in what a process has mapped."""

NAMES_BYTES = 64 << 20
"""Most bytes of names: 200,000 tensors with names of 250 characters."""

EVENTS_BYTES = 8 << 20
"""Most bytes of events that are not in the spool yet; they are there for half a second."""

EMPTY_ABOVE_BYTES = 1 << 16
"""Bytes of events that are in the spool above which their log is emptied."""


class SharedState(Mirror):
    """All that outlives this process, of one attached model. `is_shared` False keeps it to the process.

    Falls back to that, with `why_not`, where the kernel gives no such memory.
    """

    def __init__(self, *, is_shared: bool, histograms: bool = False, listener: MemoryListener | None = None) -> None:
        self.why_not = "" if is_shared else "it is switched off (watcher=False)"
        if is_shared and not IS_SUPPORTED:
            self.why_not = "it needs Linux 5.3 or newer"
        self.memory = Memory(STEPS_FILE, is_shared=False)
        if not self.why_not:
            try:
                self.memory = Memory(STEPS_FILE, is_shared=True)
                self._steps = StoredSteps(self.memory, listener)
            except OSError as error:
                self.why_not = f"the kernel gives no memory for it ({error.strerror})"
                self.memory.close()
                self.memory = Memory(STEPS_FILE, is_shared=False)
        if self.why_not:
            self._steps = StoredSteps(self.memory, listener)
        self.names = Log("rangewatch-names", NAMES_BYTES, is_shared=not self.why_not)
        self._events = Log("rangewatch-events", EVENTS_BYTES, is_shared=not self.why_not)
        self.cells = self._steps.cells
        self.cells[mirror.TENSOR] = -1
        self._numbers: dict[tuple[str, str], int] = {}
        self._groups: WeakKeyDictionary[Group, int] = WeakKeyDictionary()
        self._group_count = 0
        self._lock, self._events_lock = threading.Lock(), threading.Lock()
        self._event_count = 0
        self._emit("histograms", histograms)
        self.cells[layout.SIGNATURE] = layout.MAGIC

    @property
    def steps(self) -> StoredSteps:
        """The rows of closed steps."""
        return self._steps

    @property
    def descriptors(self) -> list[int]:
        """Of the steps, the names and the events; empty where they are this process's alone."""
        shared = [self.memory.descriptor, self.names.descriptor, self._events.descriptor]
        return shared if min(shared) >= 0 else []

    def open_step(self, step: int) -> None:
        """`step` is open, and nothing recorded in it."""
        self.cells[mirror.TENSOR] = -1
        self.cells[mirror.STEP] = step

    def tensor(self, number: int, entry: TensorEntry) -> None:
        """The catalogue has a tensor more."""
        self._emit("tensor", [number, entry])

    def series(self, name: str, step: int, value: float) -> None:
        """A value of a series was recorded."""
        if self.why_not:
            return
        number = self._numbers.get(("series", name))
        self.steps.series(self._number("series", name) if number is None else number, step, value)

    def event(self, event: Event) -> int:
        """Something happened that is to be shipped; how many events there were with it."""
        with self._events_lock:
            self._event_count += 1
            self._events.append(_encoded([self._event_count, event]))
            return self._event_count

    def sending(self, sequence: int, mark: object) -> None:
        """A batch is about to be put into the spool: what its shipment is marked with (its block and how many events
        there were) is safe with it.
        """
        block, events = mark if isinstance(mark, tuple) else (0, 0)
        self.steps.sending(sequence, block, events)

    def sent(self) -> None:
        """The batch of the last `sending` is safe."""
        self.steps.sent()
        if self._events.nbytes > EMPTY_ABOVE_BYTES:
            with self._events_lock:
                if self.cells[layout.RELEASED_EVENTS] >= self._event_count:
                    self._events.clear()

    def collective_called(self, group: Group, record: Collective) -> None:
        """From the thread that calls it."""
        at = self._group(group)
        if at >= 0:
            op = record.op
            number = self._numbers.get(("op", op))
            self.cells[at + layout.OP] = self._number("op", op) if number is None else number
            self.cells[at + layout.ENQUEUED] = record.sequence

    def collective_ended(self, group: Group) -> None:
        """From any thread."""
        at = self._group(group)
        if at >= 0:
            self.cells[at + layout.KNOWS_ENDS] = group.knows_ends
            self.cells[at + layout.COMPLETED] = group.completed

    def end(self, how: int) -> None:
        """The agent records no more: `layout.DETACHED`, `FAILED` or `AT_EXIT`."""
        self.cells[layout.CLOSED] = how

    def close(self) -> None:
        """Let go of the files. The watcher may hold them still."""
        self.memory.close()
        self.names.close()
        self._events.close()

    def _group(self, group: Group) -> int:
        at = self._groups.get(group)
        return self._new_group(group) if at is None else at

    def _new_group(self, group: Group) -> int:
        """Where its cells are; -1 past the first `layout.GROUPS`: places are not given twice."""
        with self._lock:
            at = self._groups.get(group)
            if at is None:
                place = self._group_count
                at = layout.GROUPS_AT + place * layout.GROUP_CELLS if place < layout.GROUPS else -1
                self._group_count += 1
                if at >= 0:
                    self.cells[at + layout.KNOWS_ENDS] = group.knows_ends
                    self._emit("group", [place, {"name": group.name, "desc": group.desc, "ranks": group.ranks[:64]}])
                self._groups[group] = at
            return at

    def _number(self, kind: str, name: str) -> int:
        with self._lock:
            number = self._numbers.get((kind, name))
            if number is None:
                number = sum(known == kind for known, _ in self._numbers)
                self._emit(kind, [number, name])
                self._numbers[kind, name] = number
            return number

    def _emit(self, kind: str, value: Any) -> None:
        self.names.append(_encoded([kind, value]))


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b"\xc0"  # None: what the wire cannot hold either
