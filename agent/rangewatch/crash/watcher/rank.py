"""One rank of the node as the watcher sees it: what it has handed over, and what is done when it is gone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from rangewatch.core import limits
from rangewatch.crash.handover import DESCRIPTORS, STACK, STDERR, Joining
from rangewatch.crash.memory import anonymous_file, layout
from rangewatch.crash.memory.shared_state import STEPS_FILE
from rangewatch.crash.memory.text_ring import read_ring
from rangewatch.crash.oom_kills import OomKills
from rangewatch.crash.stderr_lines import read_file, stderr_event, with_tail
from rangewatch.crash.watcher import death_report
from rangewatch.crash.watcher.death_report import Ending
from rangewatch.crash.watcher.recovery import NO_NAMES, CrashRecord, Position
from rangewatch.crash.watcher.uploads import Last, last_batches
from rangewatch.delivery.spool import process
from rangewatch.delivery.spool.folder import Folder, Owner, SpoolError, write_owner
from rangewatch.wire.records import Event

T = TypeVar("T")

CLAIM_S = 3.0
"""Seconds that a folder's lock is waited for: children that the rank forked may hold it until they see it gone."""

SAID_ALL = (layout.DETACHED, layout.FAILED)
"""Goodbyes after which nothing is left to be reported."""

TRIES = 3
"""Times that it begins anew when its folder goes away meanwhile."""


class Rank:
    """`descriptors` are the rank's, see `DESCRIPTORS` and `Joining.more`; they are closed by `close`."""

    def __init__(self, joining: Joining, descriptors: list[int]) -> None:
        self.joining, self._descriptors = joining, descriptors
        self.pidfd = descriptors[0]
        self._more = dict(zip(joining.more, descriptors[DESCRIPTORS:], strict=False))
        self._oom_kills = OomKills(Path(os.fsdecode(joining.oom_file)), joining.oom_kills)

    @property
    def folder(self) -> Path:
        """Its spool."""
        return Path(os.fsdecode(self.joining.folder))

    def poll(self) -> None:
        """Now and then while it lives."""
        self._oom_kills.poll()

    def has_left(self) -> bool:
        """Whether its agent has ended while the process may go on: the spool is nobody's then, and its end no death."""
        left = self._left()
        return left is not None and left.closed in SAID_ALL

    def is_replaced(self) -> bool:
        """Whether the process goes on as another program (`exec`), with nothing of its agent in it."""
        owner = self.joining.process
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{owner.pid}/maps").read_bytes()  # empty while a process ends
            is_other = bool(maps) and STEPS_FILE.encode() not in maps
            return is_other and process.start_ticks(owner.pid) == owner.start_ticks
        return False

    def ended(self, ending: Ending | None = None) -> tuple[Folder, list[Last]] | None:
        """After its death: its spool with its last batches in it, and what the disk did not take of them.

        Claimed, unless `rangewatch replay` has had it for `CLAIM_S`: both may send it, and it is stored once.

        `ending`: where it is known already.

        None when there is nothing to send. Raises `OSError` where there is no spool, and none can be made.
        """
        stack = self._stack()
        ending = ending or self._ending(stack)
        left = self._left()
        event = self._event(ending, left, stack)
        last = () if event is None else (*self._stderr(event.step), event)
        for _ in range(TRIES):
            folder = self._folder(creates=event is not None)
            if folder is None:
                return None
            _claim(folder)
            made = self._last_batches(folder, left, last)
            try:
                for batch, opening in made:
                    folder.append(batch, None if folder.opening(batch.catalogue) is not None else opening)
            except FileNotFoundError:  # somebody else has sent and removed it meanwhile (`rangewatch replay`)
                folder.release()
            except OSError:  # such as a full disk: one that was taken is sent twice, to no harm
                return folder, made
            else:
                return folder, []
        return None

    def _last_batches(self, folder: Folder, left: CrashRecord | None, last: tuple[Event, ...]) -> list[Last]:
        used = max(folder.next_sequence, 0 if left is None else left.next_sequence)
        made = []
        if left is not None:
            with contextlib.suppress(Exception):  # whatever is wrong with its memory, how it ended is known
                events = left.events(used) + last
                made = last_batches(folder.info, left.names, left.blocks(used), events, used, self.joining.allow_inf)
        return made or last_batches(folder.info, NO_NAMES, [], last, used)

    def close(self) -> None:
        """Let go of what it had handed over."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors = []

    def _left(self) -> CrashRecord | None:
        with contextlib.suppress(Exception):  # whatever is wrong with its memory
            return CrashRecord(self._descriptors[1:4])
        return None

    def _stack(self) -> str:
        if STACK not in self._more:
            return ""
        return anonymous_file.read_all(self._more[STACK], 1 << 20).decode("utf-8", "replace")

    def _stderr(self, step: int) -> list[Event]:
        """The last lines that it wrote there; none where they were not asked for."""
        source = self.joining.stderr
        if source is None or STDERR not in self._more:
            return []
        read = read_file if source.source == "file" else read_ring
        tail = within(limits.STDERR_READ_S, lambda: read(self._more[STDERR]))
        if tail is None:
            details = msgspec.structs.replace(source, why_not="its file could not be read when the process had ended")
        else:
            details = with_tail(source, tail, self.joining.token)
        return [stderr_event(details, step)]

    def _ending(self, stack: str) -> Ending:
        owner = self.joining.process
        ending = death_report.of_process(self.pidfd, owner.pid, owner.start_ticks)
        return ending if ending.is_known else death_report.from_stack(stack)

    def _event(self, ending: Ending, left: CrashRecord | None, stack: str) -> Event | None:
        """None for one that had said goodbye, and did as it said."""
        closed = layout.OPEN if left is None else left.closed
        if closed in SAID_ALL:
            return None
        if closed == layout.AT_EXIT and not ending.signal and not ending.exit_code:
            return None
        position: Position | None = None
        with contextlib.suppress(Exception):
            position = None if left is None else left.position()
        tensors = () if left is None else left.names.tensors
        return death_report.died(ending, position, tensors, self._oom_kills.lately(), stack, time.time_ns())

    def _folder(self, *, creates: bool) -> Folder | None:
        """Its spool; made anew where it was removed, everything being sent, and there is more to say."""
        try:
            return Folder(self.folder)
        except (SpoolError, OSError):
            if not creates:
                return None
        joining = self.joining
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_owner(self.folder, Owner(1, joining.info, joining.url, joining.process))
        return Folder(self.folder)


def within(seconds: float, read: Callable[[], T]) -> T | None:
    """What `read` answers; None where it fails, or is not done by then: a file system that has gone away must not keep
    the watcher from the other ranks.
    """
    answers: list[T] = []

    def answer() -> None:
        with contextlib.suppress(OSError, ValueError):
            answers.append(read())

    thread = threading.Thread(target=answer, name="watcher-stderr", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def _claim(folder: Folder) -> None:
    until_s = time.monotonic() + CLAIM_S
    while not folder.claim() and time.monotonic() < until_s:
        time.sleep(0.02)
