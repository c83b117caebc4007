"""What waits to be sent is on disk while that takes it, else in memory, always in order, and each loss is counted."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rangewatch.core import limits
from rangewatch.delivery.spool import place, process, segment
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.spool.queue import Queue
from rangewatch.delivery.spool.record import Encoded
from rangewatch.recording.events import Drops
from tests.agent.delivery.spool.batches import INFO

REAL = os.pwrite


class Waiting:
    def __init__(self, folder: Path, spool_bytes: int = 1 << 20, queue_bytes: int = 1 << 20) -> None:
        self.drops = Drops()
        self.reported: list[str] = []
        self.queue = Queue(INFO, "http://u", str(folder), spool_bytes, queue_bytes, self.drops, self)
        self.queue.open()

    def spool_changed(self, message: str) -> None:
        self.reported.append(message)

    def put(self, *sequences: int, size: int = 100) -> None:
        for sequence in sequences:
            self.queue.put(Encoded(bytes(size), 0, "digest", sequence), lambda: b"opening")

    def taken(self) -> list[int]:
        sequences = []
        while len(self.queue):
            assert self.queue.first() is self.queue.first()
            sequences.append(self.queue.first().sequence)
            self.queue.remove_first()
        return sequences


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """While it holds an errno, writes to files fail with it."""
    codes: list[int] = []
    whole = segment.write_whole

    def write_whole(*args: Any) -> int:
        if codes:
            raise OSError(codes[0], os.strerror(codes[0]))
        return whole(*args)

    monkeypatch.setattr(segment, "write_whole", write_whole)

    def write(descriptor: int, data: Any, offset: int) -> int:
        if codes:
            raise OSError(codes[0], os.strerror(codes[0]))
        return REAL(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    return codes


def test_all_on_disk(tmp_path: Path) -> None:
    tested = Waiting(tmp_path)
    tested.put(0, 1, 2)
    assert tested.queue.folder is not None and tested.queue.memory_bytes == 0
    assert [each.sequence for each in Folder(tested.queue.folder).batches()] == [0, 1, 2]
    assert tested.taken() == [0, 1, 2] and tested.reported == []
    tested.queue.close()
    assert not tested.queue.folder.exists()


def test_nothing_is_written_where_no_spool_is_wanted(tmp_path: Path) -> None:
    tested = Waiting(tmp_path / "none", spool_bytes=0)
    tested.put(0, 1)
    assert tested.queue.folder is None and not (tmp_path / "none").exists()
    assert tested.taken() == [0, 1] and tested.reported == []


def test_where_no_folder_will_do_all_is_in_memory_and_it_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(place, "file_system", lambda path: "nfs4")
    tested = Waiting(tmp_path / "nfs")
    tested.put(0, 1)
    (said,) = tested.reported
    assert "nfs4" in said and "in memory only" in said
    assert tested.taken() == [0, 1] and not (tmp_path / "nfs").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_fault_is_told_once_and_costs_nothing(tmp_path: Path, failing: list[int], code: int) -> None:
    tested = Waiting(tmp_path)
    tested.put(0, 1)
    failing.append(code)
    tested.put(2, 3)
    failing.clear()
    tested.put(4)
    (said,) = tested.reported
    assert os.strerror(code) in said and "in memory until it works again" in said
    assert tested.queue.memory_bytes == 300, "the order is kept: what comes later stays behind what is in memory"
    assert tested.taken() == [0, 1, 2, 3, 4] and tested.drops.counts == {}
    assert tested.queue.folder is not None
    assert Folder(tested.queue.folder).next_sequence == 5, "though the last three were in no record"


def test_memory_keeps_its_own_bound_then(tmp_path: Path, failing: list[int]) -> None:
    tested = Waiting(tmp_path, queue_bytes=1000)
    tested.put(0)
    failing.append(errno.ENOSPC)
    tested.put(*range(1, 31))
    assert tested.queue.memory_bytes <= 1000
    sequences = tested.taken()
    assert sequences[:2] == [0, 1] and sequences[-1] == 30
    assert tested.drops.counts == {"queue_full": 31 - len(sequences)}


def test_the_disk_is_tried_again(tmp_path: Path, failing: list[int], monkeypatch: Any) -> None:
    tested = Waiting(tmp_path)
    failing.append(errno.ENOSPC)
    tested.put(0)
    failing.clear()
    assert tested.taken() == [0]
    tested.put(1)
    assert tested.queue.memory_bytes, "not at once"
    tested.taken()
    monkeypatch.setattr(limits, "SPOOL_RETRY_S", 0.0)
    tested.put(2)
    assert tested.queue.memory_bytes == 0 and tested.taken() == [2]


def test_a_folder_that_somebody_deletes(tmp_path: Path, monkeypatch: Any) -> None:
    tested = Waiting(tmp_path)
    tested.put(0, 1)
    assert tested.queue.folder is not None
    shutil.rmtree(tested.queue.folder)
    tested.put(2, 3)
    assert tested.taken() == [0, 1, 2, 3] and "was deleted" in tested.reported[0]
    monkeypatch.setattr(limits, "SPOOL_RETRY_S", 0.0)
    tested.put(4)
    assert [each.sequence for each in Folder(tested.queue.folder).batches()] == [4], "it is made anew"


def test_a_disk_that_cannot_be_written_to_from_the_start(tmp_path: Path, failing: list[int]) -> None:
    failing.append(errno.EROFS)
    tested = Waiting(tmp_path)
    tested.put(0, 1)
    assert tested.queue.folder is None and tested.taken() == [0, 1]
    assert "Read-only" in tested.reported[0]


def test_what_is_left_stays(tmp_path: Path) -> None:
    tested = Waiting(tmp_path)
    tested.put(0, 1)
    tested.queue.remove_first()
    tested.queue.close()
    assert tested.queue.folder is not None
    folder = Folder(tested.queue.folder)
    assert [each.sequence for each in folder.batches()] == [1] and folder.claim()


def test_a_disk_that_was_full_for_a_while_gets_what_memory_had(
    tmp_path: Path, failing: list[int], monkeypatch: Any
) -> None:
    """The server is away all the time: a checkpoint filled the disk, and went."""
    tested = Waiting(tmp_path, queue_bytes=1000)
    tested.put(0, 1)
    failing.append(errno.ENOSPC)
    tested.put(2, 3, 4)
    monkeypatch.setattr(limits, "SPOOL_RETRY_S", 0.0)
    tested.put(5)
    assert tested.queue.memory_bytes == 400, "it is tried, and not taken"
    failing.clear()
    tested.put(*range(6, 30))
    assert tested.queue.memory_bytes == 0 and tested.drops.counts == {} and tested.queue.folder is not None
    assert [each.sequence for each in Folder(tested.queue.folder).batches()] == list(range(30))
    assert tested.taken() == list(range(30)) and tested.queue._openings == {}


def test_a_disk_that_was_full_from_the_start_gets_it_too(tmp_path: Path, failing: list[int], monkeypatch: Any) -> None:
    failing.append(errno.ENOSPC)
    tested = Waiting(tmp_path)
    tested.put(0, 1)
    assert list(tmp_path.glob("*/*/*")) == [], "nor is an empty folder left"
    failing.clear()
    monkeypatch.setattr(limits, "SPOOL_RETRY_S", 0.0)
    tested.put(2)
    assert tested.queue.folder is not None
    assert [each.sequence for each in Folder(tested.queue.folder).batches()] == [0, 1, 2] == tested.taken()


def test_a_folder_that_another_sends_is_not_written_to(tmp_path: Path, monkeypatch: Any) -> None:
    """It would be removed when that is done."""
    base, _ = place.choose_base(str(tmp_path))
    assert base is not None
    path = place.rank_folder(base, INFO)
    path.mkdir(parents=True)
    lock = process.lock(path)
    assert lock is not None
    tested = Waiting(tmp_path)
    tested.put(0)
    assert tested.queue.folder is None and "somebody sends what is in it" in tested.reported[0]
    os.close(lock)
    path.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(limits, "SPOOL_RETRY_S", 0.0)
    tested.put(1)
    assert tested.queue.folder == path and tested.taken() == [0, 1]
