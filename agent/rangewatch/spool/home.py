"""Makes and gives up a rank's folder: the lock that says that the rank lives, and `rank.json`."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

from rangewatch.records import RankInfo
from rangewatch.spool import process
from rangewatch.spool.folder import FORMAT, Owner, write_owner
from rangewatch.spool.log import Log


class Home:
    """The folder of a living rank, with its log. Raises `OSError` where it cannot be made.

    Made again over what is there (after a disk fault): what was not sent from it stays, for `rangewatch replay`.
    """

    def __init__(
        self, folder: Path, info: RankInfo, url: str, max_bytes: int, lost: Callable[[str, int], None]
    ) -> None:
        _make(folder)
        self.folder = folder
        self._lock = process.lock(folder)
        try:
            if self._lock is None:
                raise BlockingIOError(errno.EBUSY, "somebody sends what is in it")
            # The lock comes first: a folder with an owner and without a lock is one whose rank has ended.
            write_owner(folder, Owner(FORMAT, info, url, process.this_process()))
            self.log = Log(folder, max_bytes, info.ship_every, lost)
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
