"""Records of collectives: written where they are called and where they end, taken by the collectors' thread.

A record holds numbers and names only, never a `Work` or a tensor. Nothing here waits for a lock or for a device.

The end of a process that has collectives under way.

gloo tells us of an end by calling Python from a thread of its own. Once the interpreter is gone that call aborts the
process (or, from Python 3.14 on, hangs it). Torch waits for those collectives anyway, when it destroys the group a
moment later: the same wait, done while there is an interpreter, costs nothing.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch

from rangewatch.collectors.collectives.ops import BARRIER, POINT_TO_POINT, Kind, size_bytes
from rangewatch.collectors.collectives.process_groups import (
    ENDED,
    FAILED,
    ISSUED,
    UNKNOWN,
    WAITING,
    Group,
    ProcessGroups,
    Record,
    backend_name,
    tells_by_future,
)
from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded, logger
from rangewatch.recording.events import OpenStep
from rangewatch.recording.rows.mirror import Mirror

LONGEST_S = 1900.0
"""Seconds of that wait: gloo gives a collective up after its timeout, half an hour by default."""

LOG_AFTER_S = 5.0
POLL_S = 0.02
LET_GO_S = 0.05
"""Seconds for gloo's thread to let go of the last callback, for which it needs the interpreter once more."""

recorders: WeakSet[CollectiveRecorder] = WeakSet()
"""Those whose collectives may be under way. Who waits for a callback is held by it."""


@atexit.register
def _wait() -> None:
    began_s, is_logged = time.monotonic(), False
    while (count := sum(each.under_way() for each in list(recorders))) and time.monotonic() - began_s < LONGEST_S:
        if not is_logged and time.monotonic() - began_s > LOG_AFTER_S:
            is_logged = True
            logger.warning("rangewatch: the process ends when gloo's %d collectives have, as torch asks for", count)
        time.sleep(POLL_S)
    if any(each.begun_count for each in list(recorders)):
        time.sleep(LET_GO_S)


RECORDS = 20_000
"""Records between two looks of the collectors' thread; the oldest go first, and are counted. Some 10 MB."""

OF_STEP = 4096
"""Collectives of one step that are looked at to say how long the step waited for them."""

Call = tuple[Any, Sequence[Any], Sequence[Any], bool]
"""Process group, tensors that go in, tensors that come out, and whether the caller goes on meanwhile."""
Read = Callable[[Any], Call]
"""Reads a call from what torch hands over. It runs inside the guard, as all that could fail does."""


class ActiveRecorder:
    """Who hears of this process's collectives: one recorder at a time, however many models are attached."""

    recorder: CollectiveRecorder | None = None
    _lock = threading.Lock()

    @classmethod
    def claim(cls, recorder: CollectiveRecorder) -> bool:
        """Call `recorder` from here on; False when another one is called already."""
        with cls._lock:
            if cls.recorder is None:
                cls.recorder = recorder
            return cls.recorder is recorder

    @classmethod
    def release(cls, recorder: CollectiveRecorder) -> None:
        """Tell `recorder` no more."""
        with cls._lock:
            if cls.recorder is recorder:
                cls.recorder = None

    @classmethod
    def step_aside(cls) -> None:
        """In a forked child: nobody takes its parent's records there, and nobody lets go of its parent's locks."""
        cls.recorder, cls._lock = None, threading.Lock()
        recorders.clear()  # the threads that would tell of their ends are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ActiveRecorder.step_aside)


class CollectiveRecorder:
    """What the collectives of this process write to. `begin`, `issued` and `failed` are called around each."""

    def __init__(self, guard: Guard) -> None:
        self.groups = ProcessGroups()
        self.open_step = OpenStep(-1)
        self.hidden = self.dropped = self.waiting_dropped = 0
        """Counts: captured into CUDA graphs; records not taken in time; open ones no longer followed."""
        self.begun_count = self.moved_bytes = 0
        """Calls, and what went to or came from other ranks with them, each as its kind counts bytes: see `ops`."""
        self.mirror: Mirror | None = None
        """Where the last collective called and the last that ended are kept, should the process die."""
        self._records: deque[Record] = deque()
        self._of_step: list[Record] = []
        self._dtypes: dict[Any, str] = {}
        self._guard = guard
        recorders.add(self)
        self.begin = Guarded(guard, "a collective begins", self._begin)
        self.issued = Guarded(guard, "a collective was issued", self._issued)
        self.failed = Guarded(guard, "a collective failed", self._failed)
        self._ended = Guarded(guard, "a collective ended", self._end)

    @property
    def has_given_up(self) -> bool:
        """Whether a place failed so often that it does nothing any more: what is recorded from then on is not whole."""
        return any(count >= limits.FAULTS_TO_DETACH for count in self._guard.counts.values())

    def under_way(self) -> int:
        """How many collectives of gloo will still call back."""
        if self.has_given_up:
            return 0  # nobody notes the end any more
        groups = [group for group in self.groups.all() if group.backend == "gloo"]
        records = [record for group in groups for record in list(group.waiting.values())]
        return sum(
            record.state == ISSUED and record.kind not in record.group.silent for record in records if record.group
        )

    def take(self) -> list[Record]:
        """What was called since the last call of this, in order. On the collectors' thread."""
        return [self._records.popleft() for _ in range(len(self._records))]

    def of_step(self, step: int, first: int = 0) -> list[Record]:
        """The collectives of `step` from its `first` on, if that is the last step that had any."""
        records = self._of_step[:]
        return records[first:] if records and records[0].step == step else []

    def close(self, record: Record, state: int, duration_s: float = math.nan) -> None:
        """`record` has ended, as another source says (the flight recorder)."""
        group = record.group
        if group is not None and record.is_open:
            record.state, record.duration_s = state, duration_s
            group.waiting.pop(id(record), None)
            if state == ENDED:
                group.completed = max(group.completed, record.sequence)
                if self.mirror is not None:
                    self.mirror.collective_ended(group)

    def _begin(self, record: Record, kind: Kind, read: Read, source: Any) -> None:
        process_group, inputs, outputs, is_async = read(source)
        if process_group is None:
            return  # it is being destroyed
        tensor = inputs[0] if inputs else outputs[0] if outputs else None
        if tensor is not None and _is_traced(tensor):
            return
        device = tensor.device.type if tensor is not None else default_device(process_group)
        if device == "cuda" and torch.cuda.is_current_stream_capturing():
            self.hidden += 1  # it runs when the graph is replayed, and nobody is called then
            return
        group = self.groups.of(process_group, device)
        record.kind, record.is_async, record.step = kind, is_async, self.open_step.number
        record.dtype = self._dtype(tensor) if kind is not BARRIER else ""
        record.bytes = size_bytes(kind, inputs, outputs)
        self.moved_bytes += record.bytes if len(group.ranks) > 1 else 0
        is_point_to_point = kind.name in POINT_TO_POINT
        sequence = group.next_sequence(process_group, is_point_to_point=is_point_to_point)
        if not is_point_to_point:
            record.sequence = group.enqueued = sequence
        record.thread = threading.get_ident()
        record.enqueued_ns, record.began_ns = time.time_ns(), time.perf_counter_ns()
        record.group = group
        self._keep(group, record)
        if self.mirror is not None and kind.name not in POINT_TO_POINT:
            self.mirror.collective_called(group, record)

    def _keep(self, group: Group, record: Record) -> None:
        self.begun_count += 1
        self._records.append(record)
        if len(self._records) > RECORDS:
            self._records.popleft()
            self.dropped += 1
        if record.kind.name in POINT_TO_POINT:
            return
        of_step = self._of_step  # another thread may begin a new one meanwhile
        if of_step and of_step[0].step != record.step:
            self._of_step = of_step = []
        if len(of_step) < OF_STEP:
            of_step.append(record)
        if group.silent:
            self._end_silent(group)
        group.waiting[id(record)] = record
        if len(group.waiting) > WAITING:
            group.waiting.popitem(last=False)
            self.waiting_dropped += 1

    def _end_silent(self, group: Group) -> None:
        """Nobody says when they end; that the next one is called is the best there is."""
        for record in list(group.waiting.values()):
            if record.kind in group.silent and record.state == ISSUED:
                self.close(record, UNKNOWN)

    def _dtype(self, tensor: Any) -> str:
        if tensor is None:
            return ""
        name = self._dtypes.get(tensor.dtype)
        if name is None:
            name = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        return name

    def _issued(self, record: Record, read: Callable[[Any], Any], source: Any) -> None:
        """The `Work` is let go of at once: it keeps the tensors alive."""
        group, record.state = record.group, max(record.state, ISSUED)
        if group is None or not group.has_futures or record.kind.name in POINT_TO_POINT:
            return
        work = read(source)
        if work is None:
            self.close(record, ENDED, record.waited_s())  # it was carried out at once
            return
        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError):
            group.silent.add(record.kind)  # gloo's reduce_scatter has no future
            return
        future.add_done_callback(_Ending(self._ended, record))

    def _end(self, record: Record, future: Any, now_ns: int) -> None:
        state = ENDED
        try:
            future.value()
        except RuntimeError:
            state = FAILED
        self.close(record, state, (now_ns - record.began_ns) / 1e9 if state == ENDED else math.nan)

    def _failed(self, record: Record) -> None:
        self.close(record, FAILED)


class _Ending:
    """Told by torch, in a thread of the backend, that a collective has ended."""

    __slots__ = ("ended", "record")

    def __init__(self, ended: Guarded, record: Record) -> None:
        self.ended, self.record = ended, record

    def __call__(self, future: Any) -> None:
        self.ended(self.record, future, time.perf_counter_ns())


def default_device(group: Any) -> str:
    """Where a collective without tensors runs (a barrier): with NCCL or its like where the group has that."""
    types = [device.type for device in getattr(group, "_device_types", ())]
    apart = [each for each in types if not tells_by_future(each, backend_name(group, each))]
    return (apart or [each for each in types if each == "cpu"] or types or ["cpu"])[0]


def _is_traced(tensor: Any) -> bool:
    """A compiler is looking, and nothing is sent."""
    return type(tensor) is not torch.Tensor and hasattr(tensor, "fake_mode")
