"""What waits to be sent: in the rank's spool, or in memory where there is none. Used by the sender's thread alone.

It makes and gives up a rank's folder: the lock that says that the rank lives, and `rank.json`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from rangewatch.core import limits
from rangewatch.delivery.spool import place, process
from rangewatch.delivery.spool.folder import FORMAT, Owner, write_owner
from rangewatch.delivery.spool.log import DropCounts, Log
from rangewatch.delivery.spool.record import Encoded
from rangewatch.wire.records import RankInfo


class Home:
    """The folder of a living rank, with its log. Raises `OSError` where it cannot be made.

    Made again over what is there (after a disk fault): what was not sent from it stays, for `rangewatch replay`.
    """

    def __init__(self, folder: Path, info: RankInfo, url: str, max_bytes: int, drops: DropCounts) -> None:
        _make(folder)
        self.folder = folder
        self._lock = process.lock(folder)
        try:
            if self._lock is None:
                raise BlockingIOError(errno.EBUSY, "somebody sends what is in it")
            # The lock comes first: a folder with an owner and without a lock is one whose rank has ended.
            write_owner(folder, Owner(FORMAT, info, url, process.this_process()))
            self.log = Log(folder, max_bytes, drops)
        except BaseException:
            _remove_if_empty(folder)
            self._unlock()
            raise
        _homes.add(self)

    def close(self) -> None:
        """The rank is done: without a batch that is not acknowledged the folder goes, else it stays for others."""
        self.log.close()
        if not len(self.log):
            shutil.rmtree(self.folder, ignore_errors=True)
            _remove_if_empty(self.folder)
        self._unlock()

    def abandon(self) -> None:
        """In a forked child, whose copy of the lock's descriptor would outlive the rank."""
        self._unlock()

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _make(folder: Path) -> None:
    for is_last in (False, False, True):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        except FileNotFoundError:  # another rank's end has just taken the job's folder away
            if is_last:
                raise


def _remove_if_empty(folder: Path) -> None:
    for each in (folder, folder.parent):
        with contextlib.suppress(OSError):
            each.rmdir()


_homes: WeakSet[Home] = WeakSet()


def _abandon_all() -> None:
    for home in list(_homes):
        home.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


class SpoolObserver(Protocol):
    """Says to the user where batches are kept."""

    def spool_changed(self, message: str) -> None:
        """They are kept elsewhere than usual from here on, and why."""


class MemoryQueue:
    """Encoded batches in order, bounded in bytes. The first one may be on its way and is never dropped."""

    def __init__(self, max_bytes: int, drops: DropCounts) -> None:
        self._batches: deque[Encoded] = deque()
        self._max_bytes, self._drops = max_bytes, drops
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: Encoded) -> None:
        """Add at the end, dropping the oldest but the first when there is no room."""
        self._batches.append(batch)
        self.nbytes += len(batch.body)
        while self.nbytes > self._max_bytes and len(self._batches) > 2:
            first = self._batches.popleft()
            dropped = self._batches.popleft()
            self.nbytes -= len(dropped.body)
            self._batches.appendleft(first)
            self._drops.add("queue_full")

    def first(self) -> Encoded:
        """The oldest, which stays. There must be one."""
        return self._batches[0]

    def remove_first(self) -> None:
        """The oldest has arrived, or never will."""
        self.nbytes -= len(self._batches.popleft().body)


class Queue:
    """The spool's log while the disk takes what comes; from a fault on, memory, until the disk takes that as well.

    Order is kept: what is in memory came later than what is on disk. With `spool_bytes` 0 all is in memory, and
    `observer` hears nothing.
    """

    def __init__(
        self,
        info: RankInfo,
        url: str,
        spool_dir: str | None,
        spool_bytes: int,
        queue_bytes: int,
        drops: DropCounts,
        observer: SpoolObserver,
    ) -> None:
        self._info, self._url, self._drops, self._observer = info, url, drops, observer
        self._spool_dir, self._spool_bytes = spool_dir, spool_bytes
        self._memory = MemoryQueue(queue_bytes, drops)
        self._home: Home | None = None
        self._folder: Path | None = None
        self._failed_s: float | None = None
        self._openings: dict[str, Callable[[], bytes]] = {}
        """By catalogue, those of what is in memory."""
        self._reported: set[str] = set()

    def __len__(self) -> int:
        home = self._home
        return (0 if home is None else len(home.log)) + len(self._memory)

    @property
    def folder(self) -> Path | None:
        """Where the spool is; None: all is in memory."""
        return None if self._home is None else self._home.folder

    @property
    def memory_bytes(self) -> int:
        """Bytes of the batches that the disk did not take."""
        return self._memory.nbytes

    def open(self) -> None:
        """Find a place for the spool and make it. Never raises for the disk's sake."""
        if not self._spool_bytes:
            return
        base, reason = place.choose_base(self._spool_dir)
        if reason:
            self._say(f"{reason}: {'batches are kept in memory only' if base is None else f'the spool is in {base}'}")
        if base is not None:
            self._folder = place.rank_folder(base, self._info)
            self._make_home()

    def put(self, batch: Encoded, opening: Callable[[], bytes]) -> None:
        """Add at the end. `opening` encodes the stream's header, with the batch's catalogue; called where it is new."""
        if self._failed_s is not None and time.monotonic() - self._failed_s >= limits.SPOOL_RETRY_S:
            self._try_again()
        if self._home is not None and self._failed_s is None:
            try:
                self._home.log.append(batch, opening)
                return
            except OSError as error:
                self._fail(error)
        if self._home is not None:
            self._home.log.note_newest(batch.sequence)
        if self._folder is not None:
            self._openings[batch.catalogue] = opening
        self._memory.put(batch)

    def first(self) -> Encoded:
        """The oldest, which stays, the same object each time. There must be one."""
        if self._home is not None and self._home.log.head:
            return self._home.log.head[0][1]
        return self._memory.first()

    def remove_first(self) -> None:
        """The oldest has arrived, or never will."""
        if self._home is not None and len(self._home.log):
            self._home.log.remove_first()
        else:
            self._memory.remove_first()
            if not len(self._memory):
                self._openings.clear()

    def close(self) -> None:
        """The rank is done: the folder goes when all has arrived, and stays when not."""
        if self._home is not None:
            self._home.close()

    def _try_again(self) -> None:
        """A home that holds nothing is made anew; then what is in memory goes to the disk, if that takes it."""
        if self._home is None or not len(self._home.log):
            self._make_home()
        if self._home is None:
            return
        try:
            while len(self._memory):
                batch = self._memory.first()
                self._home.log.append(batch, self._openings[batch.catalogue])
                self._memory.remove_first()
            self._openings.clear()
            self._failed_s = None
        except OSError as error:
            self._fail(error)

    def _make_home(self) -> None:
        assert self._folder is not None
        try:
            if self._home is not None:
                self._home.close()
            self._home = Home(self._folder, self._info, self._url, self._spool_bytes, self._drops)
            self._failed_s = None
        except OSError as error:
            self._home = None
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._failed_s = time.monotonic()
        self._say(f"spool {self._folder}: {error.strerror or error}; batches are kept in memory until it works again")

    def _say(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            self._observer.spool_changed(message)
