"""When a rank has stopped advancing: the decision, and what this rank can say of it.

Python stacks of this process as evidence of a hang: all threads, and the line of the user's code that waits.

Where the interpreter itself is stuck see `stuck_timer`; what that has written is found here by the other ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from rangewatch.collectors.collectives.process_groups import Group, Record
from rangewatch.collectors.collectives.stuck_timer import TEXT_CHARACTERS
from rangewatch.wire.events import CodeLine, GroupProgress, WaitingCall

LEAST_S = 8.0
"""Seconds without a step before anything is reported; with a check a second, a stop is reported within 10 s."""

STEPS = 10.0
"""Times the 99th percentile of the step times that a step may take: evaluation and checkpoints take several."""

FIRST_STEPS_S = 60.0
"""The same while fewer than two steps are over: the first compiles, and builds the backends' connections."""

STEP_TIMES = 512
"""Step times that the percentile is of."""

WAITING_SENT = 8
"""Collectives of one group that have not ended and are sent: the first is the one that matters."""


class HangWatch:
    """Looks once a second whether the open step is another. All times in seconds of the monotonic clock."""

    def __init__(self, least_s: float = LEAST_S, first_steps_s: float = FIRST_STEPS_S) -> None:
        self._least_s, self._first_steps_s = least_s, max(first_steps_s, least_s)
        self._times_s: deque[float] = deque(maxlen=STEP_TIMES)
        self._step: int | None = None
        self._advances = 0
        self._seen: tuple[int, int] | None = None
        self._step_since_s = self._alive_since_s = 0.0
        self.is_hung = False

    @property
    def threshold_s(self) -> float:
        """Seconds without any advance after which a rank counts as stopped."""
        if self._advances < 2 or not self._times_s:
            return self._first_steps_s
        return max(self._least_s, STEPS * float(np.percentile(list(self._times_s), 99)))

    def stalled_s(self, now_s: float) -> float:
        """Seconds since the step advanced or a collective was called."""
        return now_s - self._alive_since_s

    def check(self, step: int, begun_count: int, now_s: float) -> str:
        """ "hang" or "hang_over" when that begins, else "". `begun_count`: how many collectives were called so far."""
        if (step, begun_count) != self._seen:
            self._advance(step, now_s)
            self._seen, self._alive_since_s = (step, begun_count), now_s
            was_hung, self.is_hung = self.is_hung, False
            return "hang_over" if was_hung else ""
        if not self.is_hung and self.stalled_s(now_s) >= self.threshold_s:
            self.is_hung = True
            return "hang"
        return ""

    def _advance(self, step: int, now_s: float) -> None:
        if step == self._step:
            return
        if self._step is not None and step > self._step:
            self._advances += step - self._step
            if not self.is_hung:  # a hang that is over says nothing about how long steps take
                self._times_s.append((now_s - self._step_since_s) / (step - self._step))
        self._step, self._step_since_s = step, now_s


def evidence(groups: Iterable[Group], status: dict[str, dict[str, int]]) -> tuple[GroupProgress, ...]:
    """For each group its last collectives called and ended, and what has not ended. `status`: the flight recorder's."""
    return tuple(
        GroupProgress(
            **group.about(),
            enqueued=group.enqueued,
            completed=group.completed if group.knows_ends else None,
            flight_recorder=status.get(group.name),
            waiting=tuple(_waiting_call(record) for record in _first_waiting(group)),
        )
        for group in groups
        if group.enqueued
    )


def longest_wait(groups: Iterable[Group]) -> Record | None:
    """What this rank has waited for longest."""
    waiting = [record for group in groups for record in _first_waiting(group)]
    return min(waiting, key=lambda record: record.began_ns, default=None)


def message(record: Record | None, stalled_s: float) -> str:
    """The event's message."""
    if record is None or record.group is None:
        return f"no step for {stalled_s:.0f} s; this rank is in no collective"
    size = f"{record.bytes} bytes of {record.dtype}" if record.dtype else "no data"
    what = f"{record.kind.name} {record.sequence} of group {record.group.name!r} ({size})"
    return f"no step for {stalled_s:.0f} s: waits for {what} since {record.waited_s():.0f} s"


def _first_waiting(group: Group) -> list[Record]:
    records = sorted(group.waiting.values(), key=lambda record: record.began_ns)
    if not group.knows_ends:
        return records[-1:]  # all but the last may have ended, and nobody says so
    return [record for record in records if record.is_open][:WAITING_SENT]


def _waiting_call(record: Record) -> WaitingCall:
    return WaitingCall(
        record.kind.name,
        record.sequence,
        record.bytes,
        record.dtype,
        record.enqueued_ns,
        round(record.waited_s(), 3),
        record.step,
        record.bucket,
    )


_OWN = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[2]) + os.sep)
_DEMO = str(Path(__file__).parents[2] / "commands" / "demo") + os.sep
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


def line_of(thread_id: int) -> CodeLine | None:
    """Of a thread's innermost frame outside torch, the standard library and ourselves."""
    innermost = sys._current_frames().get(thread_id)
    frame: FrameType | None = innermost
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return None
    return CodeLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def all_threads() -> str:
    """The stacks of every thread, innermost call first, as faulthandler writes them."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read(TEXT_CHARACTERS).decode("utf-8", "replace")


def stack_folder() -> Path:
    """Where ranks of one user leave their stacks for each other, on one host."""
    return Path(tempfile.gettempdir()) / f"rangewatch-stacks-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def written_by_others(folder: Path, prefix: str, own: Path, within_s: float) -> dict[str, str]:
    """File name -> text of the stacks that other ranks' timers have written in the last `within_s` seconds."""
    texts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{prefix}*")):
            with contextlib.suppress(OSError):
                state = path.lstat()
                is_fresh = state.st_size > 0 and time.time() - state.st_mtime <= within_s
                if path != own and is_fresh and state.st_uid == folder.stat().st_uid and not path.is_symlink():
                    texts[path.name] = path.read_text("utf-8", "replace")[:TEXT_CHARACTERS]
    return texts


def training_thread() -> int:
    """The thread that trains: Python's main one."""
    return threading.main_thread().ident or 0


def _is_foreign(path: str) -> bool:
    if path.startswith((*_OWN, "<")):
        return not path.startswith(_DEMO)  # it is a training like any other
    return path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)
