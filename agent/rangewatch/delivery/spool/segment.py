"""Segment files: `<first>-<last>-<level>.log`, records one after the other.

Older agents merged the steps of a full spool: such a segment stands for all segments from `first` to `last` of a lower
level, some of which may still be there if the process died just then. Ours have level 0.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rangewatch.delivery.spool.record import Scanned, scan

_NAME = re.compile(r"(\d{10})-(\d{10})-(\d{2})\.log")


class SegmentName(NamedTuple):
    """Which of the numbered segments a file stands for, and how many times its steps were merged."""

    first: int
    last: int
    level: int

    def __str__(self) -> str:
        return f"{self.first:010d}-{self.last:010d}-{self.level:02d}.log"

    def replaces(self, other: SegmentName) -> bool:
        """Whether what `other` holds is in this one, merged."""
        return self.level > other.level and self.first <= other.first and other.last <= self.last


def names(folder: Path) -> list[SegmentName]:
    """The segments to read, in the order of their batches. Raises `OSError`."""
    segments = [
        SegmentName(*map(int, match.groups()))
        for match in (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
        if match
    ]
    whole: list[SegmentName] = []
    for each in sorted(segments, key=lambda name: (name.first, -name.level)):  # what replaces others comes before them
        if not (whole and whole[-1].replaces(each)):
            whole.append(each)
    return whole


def read(path: Path) -> Scanned:
    """Its sound records, and how many are damaged. Raises `OSError`."""
    return scan(read_file(path))


def read_file(path: Path) -> bytes:
    """What a plain file holds: a link is not followed, and a pipe is not waited for. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def write_whole(folder: Path, name: str, pieces: Iterable[bytes]) -> int:
    """A file that is there with all of its content or not at all; its bytes. Raises `OSError`.

    Not synchronised to the disk: what a spool outlives is the process, and the page cache does too.
    """
    scratch = folder / f"{name}.{os.getpid()}.tmp"
    try:
        with scratch.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            size = file.tell()
        scratch.rename(folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    return size
