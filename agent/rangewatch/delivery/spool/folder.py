"""The spool of one rank as a folder: what its process left, for those who upload it. The process itself uses `log`.

rank.json                    who wrote it, for which server, and its process; never the token
opening-<digest>             the `StreamHeader` of each catalogue that a batch still needs, encoded
<first>-<last>-<level>.log   segments of records, see `segment` and `record`
newest                       the newest sequence that went past the disk, while that was full
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rangewatch.delivery.spool import process, segment
from rangewatch.delivery.spool.process import Process
from rangewatch.delivery.spool.record import FREED, STATE_OFFSET, Encoded, pack
from rangewatch.delivery.spool.segment import SegmentName
from rangewatch.wire.records import RankInfo

FORMAT = 1
RANK_FILE, OPENING_PREFIX, NEWEST_FILE = "rank.json", "opening-", "newest"
NEWEST = struct.Struct("<QI")


class Owner(msgspec.Struct, frozen=True):
    """What `rank.json` holds. `url`: the server that the rank sends to."""

    format: int
    info: RankInfo
    url: str
    process: Process


class _Format(msgspec.Struct):
    format: int


class SpoolError(Exception):
    """Why a folder cannot be read as a spool, in one line."""


def write_owner(folder: Path, owner: Owner) -> None:
    """Name the owner of a folder. Raises `OSError`."""
    segment.write_whole(folder, RANK_FILE, [msgspec.json.encode(owner)])


def write_opening(folder: Path, digest: str, body: bytes) -> int:
    """Keep the encoded `StreamHeader` of a catalogue; its bytes. Raises `OSError`."""
    return segment.write_whole(folder, OPENING_PREFIX + digest, [body])


def newest_mark(sequence: int) -> bytes:
    """What the file `newest` holds: a sequence and its CRC32."""
    return NEWEST.pack(sequence, zlib.crc32(sequence.to_bytes(8, "little")))


def is_spool(folder: Path) -> bool:
    """Whether this folder, and none above or below it, is a rank's spool."""
    return (folder / RANK_FILE).is_file()


class Folder:
    """A rank's spool as it lies there. One who uploads it calls `claim` first, so that nobody else does too.

    Raises `SpoolError` where `rank.json` is missing, damaged or of a later version, `OSError` where it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._places: dict[int, tuple[Path, int]] = {}
        self.owner = _read_owner(path)
        self.damaged = 0
        """Batches that cannot be read any more, of the segments that `batches` has read."""

    @property
    def info(self) -> RankInfo:
        """Who wrote it."""
        return self.owner.info

    @property
    def url(self) -> str:
        """The server that the rank sent to."""
        return self.owner.url

    @property
    def user(self) -> int:
        """The user id of who wrote `rank.json`. Raises `OSError`."""
        return (self.path / RANK_FILE).lstat().st_uid

    @property
    def pid(self) -> int:
        """Of the process that wrote it."""
        return self.owner.process.pid

    @property
    def has_ended(self) -> bool:
        """Whether that process is known to have ended."""
        return process.is_gone(self.owner.process)

    def is_in_use(self) -> bool:
        """Whether the rank still lives; of one that is gone it does not say whether somebody uploads what it left."""
        if self._lock is not None:
            return False
        if process.is_gone(self.owner.process):
            return False  # a child that it forked in C may hold its lock
        return not self._try_lock(keeps=False)

    def claim(self) -> bool:
        """Take the folder for uploading: False when its rank lives, or when somebody else has it.

        Held until `release` or `remove`, or until this process ends.
        """
        return self._lock is not None or self._try_lock(keeps=True)

    def release(self) -> None:
        """Leave the folder to others."""
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def batches(self) -> Iterator[Encoded]:
        """The sound batches that are not acknowledged, in the order of their sequences. Raises `OSError`.

        And those that are appended meanwhile, as the watcher does. One segment is in memory at a time:
        `limits.SPOOL_SEGMENT_BYTES`, or one larger record.
        """
        last, self.damaged = -1, 0
        while names := [name for name in segment.names(self.path) if name.first > last]:
            for name in names:
                last = name.last
                records, damaged = segment.read(self.path / str(name))
                self.damaged += damaged
                for stored in records:
                    if stored.is_held:
                        self._places[stored.batch.sequence] = self.path / str(name), stored.offset
                        yield stored.batch

    @property
    def next_sequence(self) -> int:
        """One more than any the rank has used: that of a batch to append. Raises `OSError`.

        The rank leaves its newest record here, acknowledged or not.
        """
        newest = _read_newest(self.path)
        for name in segment.names(self.path):
            newest = max([newest, *(stored.batch.sequence for stored in segment.read(self.path / str(name)).records)])
        return newest + 1

    def opening(self, digest: str) -> bytes | None:
        """The encoded `StreamHeader` of a catalogue; None when it is not here."""
        with contextlib.suppress(OSError, ValueError):
            return segment.read_file(self.path / (OPENING_PREFIX + Path(digest).name))
        return None

    @property
    def openings(self) -> dict[str, bytes]:
        """All of them, by the catalogue's digest. Raises `OSError`."""
        digests = [each.name.removeprefix(OPENING_PREFIX) for each in self.path.iterdir() if _is_opening(each.name)]
        return {digest: body for digest in sorted(digests) if (body := self.opening(digest)) is not None}

    def append(self, batch: Encoded, opening: bytes | None = None) -> None:
        """Add a batch after all others, for a rank that cannot any more: `batch.sequence` is `next_sequence`.

        `opening`: encoded, of the batch's catalogue, where the folder has none yet. Raises `OSError`.
        """
        if opening is not None:
            write_opening(self.path, batch.catalogue, opening)
        number = max((name.last for name in segment.names(self.path)), default=-1) + 1
        segment.write_whole(self.path, str(SegmentName(number, number, 0)), [pack(batch)])

    def acknowledge(self, sequence: int) -> None:
        """The server has this batch, which `batches` gave. Where it cannot be noted it is sent again, to no harm."""
        path, offset = self._places.pop(sequence)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, bytes([FREED]), offset + STATE_OFFSET)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete the folder, and those above it that are empty then. What cannot be deleted stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def _try_lock(self, *, keeps: bool) -> bool:
        descriptor = process.lock(self.path)
        if descriptor is None:
            return False
        if keeps:
            self._lock = descriptor
        else:
            os.close(descriptor)
        return True


def _read_owner(path: Path) -> Owner:
    try:
        text = segment.read_file(path / RANK_FILE)
        owner = msgspec.json.decode(text, type=_Format).format
        if owner > FORMAT:
            raise SpoolError(f"{path} was written by a later version of Rangewatch (format {owner})")
        return msgspec.json.decode(text, type=Owner)
    except (FileNotFoundError, NotADirectoryError):
        raise SpoolError(f"{path} is no spool: it has no {RANK_FILE}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpoolError(f"{path / RANK_FILE} cannot be read: {error}") from None


def _read_newest(path: Path) -> int:
    with contextlib.suppress(OSError, struct.error):
        mark = segment.read_file(path / NEWEST_FILE)
        sequence, _ = NEWEST.unpack(mark)
        if newest_mark(sequence) == mark:
            return int(sequence)
    return -1


def _is_opening(name: str) -> bool:
    return name.startswith(OPENING_PREFIX) and not name.endswith(".tmp")
