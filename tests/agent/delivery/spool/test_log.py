"""A rank's own log: in order, bounded, and sound in its files whenever the process dies."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rangewatch.core import limits
from rangewatch.delivery.spool import segment
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.spool.log import KEPT_BYTES, Log
from rangewatch.delivery.spool.record import Encoded
from rangewatch.delivery.spool.upload import upload
from rangewatch.delivery.transport import Transport
from tests.agent.delivery.spool.batches import decoded, own
from tests.agent.doubles import Lost
from tests.agent.ingest_double import IngestDouble

HALVED = Path(__file__).parents[3] / "testdata" / "spool_halved"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own(tmp_path / "spool")
    return tmp_path / "spool"


@pytest.fixture
def lost() -> Lost:
    return Lost()


@pytest.fixture
def make(folder: Path, lost: Lost) -> Iterator[Callable[..., Log]]:
    logs: list[Log] = []

    def made(max_bytes: int = 1 << 20) -> Log:
        logs.append(Log(folder, max_bytes, lost))
        return logs[-1]

    yield made
    for log in logs:
        log.close()


def raw(sequence: int, size: int = 100) -> Encoded:
    return Encoded(random.Random(sequence).randbytes(size), 1, "digest", sequence)


def append(log: Log, *batches: Encoded) -> None:
    for each in batches:
        log.append(each, lambda: b"opening")


def drained(log: Log) -> list[int]:
    sequences = []
    while log.head:
        assert len(log)
        sequences.append(log.head[0][1].sequence)
        log.remove_first()
    assert len(log) == 0
    return sequences


def file_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


def left(folder: Path) -> list[int]:
    return [each.sequence for each in Folder(folder).batches()]


def test_in_order_over_many_segments(make: Any, folder: Path) -> None:
    log = make()
    append(log, *(raw(n, 30_000) for n in range(20)))
    assert len(segment.names(folder)) > 5
    assert left(folder) == list(range(20))
    assert drained(log) == list(range(20)) and left(folder) == []


def test_while_the_server_answers_no_file_grows(make: Any, folder: Path) -> None:
    log = make(256 << 20)
    for sequence in range(2000):
        append(log, raw(sequence, 1000))
        log.remove_first()
    assert [str(each) for each in segment.names(folder)] == ["0000000000-0000000000-00.log"]
    assert file_bytes(folder) < 3000
    assert Folder(folder).next_sequence == 2000, "the newest record stays, for who has a last batch to append"


def test_a_file_that_has_grown_is_made_short_again(make: Any, folder: Path) -> None:
    log = make(256 << 20)
    append(log, *(raw(n, 100_000) for n in range(10)))
    assert file_bytes(folder) > KEPT_BYTES
    drained(log)
    append(log, raw(10))
    assert file_bytes(folder) < 1000 and left(folder) == [10]


def test_what_was_acknowledged_is_not_there_any_more(make: Any, folder: Path) -> None:
    log = make()
    append(log, *(raw(n, 20_000) for n in range(8)))
    for sequence in range(8):
        assert left(folder) == list(range(sequence, 8))
        log.remove_first()


def test_openings_stay_as_long_as_a_batch_needs_them(make: Any, folder: Path) -> None:
    log, made = make(), []
    for sequence, digest in enumerate("aabbb"):
        log.append(raw(sequence, 30_000)._replace(catalogue=digest), lambda digest=digest: made.append(digest) or b"x")
    assert made == ["a", "b"] and list(Folder(folder).openings) == ["a", "b"]
    for _ in range(2):
        log.remove_first()
    assert list(Folder(folder).openings) == ["b"]
    drained(log)
    assert list(Folder(folder).openings) == ["b"], "the next batch needs it, as a rule"


def test_over_its_bound_the_oldest_are_dropped_and_counted(make: Any, folder: Path, lost: Lost) -> None:
    log = make(1 << 20)
    for sequence in range(100):
        append(log, raw(sequence, 30_000))
        assert file_bytes(folder) <= 1 << 20
    sequences = left(folder)
    assert sequences[-1] == 99 and sequences[0] == 0, "the first may be on its way"
    gaps = [before for before, after in pairwise(sequences) if after != before + 1]
    assert len(gaps) == 1 and len(sequences) > 25, "what goes is one piece, the oldest after that"
    assert lost == {"spool_full": 100 - len(sequences)} and drained(log) == sequences


def test_a_batch_larger_than_a_segment(make: Any, folder: Path) -> None:
    log = make()
    append(log, raw(0), raw(1, 500_000), raw(2))
    assert left(folder) == [0, 1, 2] and drained(log) == [0, 1, 2]


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_segment_cut_or_damaged_anywhere_costs_what_was_there(
    make: Any, folder: Path, tmp_path: Path, stride: int
) -> None:
    log = make()
    append(log, *(raw(n, 50) for n in range(6)))
    name = str(segment.names(folder)[0])
    data = (folder / name).read_bytes()
    record = len(data) // 6
    for size in range(0, len(data), stride):
        (folder / name).write_bytes(data[:size])
        assert left(folder) == list(range(size // record))
    for place in range(0, len(data), 3 * stride):
        (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert set(range(6)) - set(left(folder)) <= {place // record}


def test_damage_is_noticed_and_counted_by_the_living_rank_too(make: Any, folder: Path, lost: Lost) -> None:
    log = make()
    append(log, *(raw(n, 30_000) for n in range(10)))
    names = segment.names(folder)
    (folder / str(names[2])).unlink()
    damaged = bytearray((folder / str(names[3])).read_bytes())
    damaged[-1] ^= 1
    (folder / str(names[3])).write_bytes(damaged)
    assert drained(log) == [0, 1, 2, 3, 6, 8, 9] and lost == {"spool_damaged": 3}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_write_that_fails_adds_nothing(make: Any, folder: Path, monkeypatch: Any, code: int) -> None:
    log = make()
    append(log, raw(0), raw(1))

    def failing(*args: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(OSError):
        append(log, raw(2))
    monkeypatch.undo()
    assert left(folder) == [0, 1] and len(log) == 2
    append(log, raw(3))
    assert drained(log) == [0, 1, 3]


def test_half_a_write_is_taken_back(make: Any, folder: Path, monkeypatch: Any) -> None:
    """A disk that is full takes the first pages of a write, and says so by its length alone."""
    log, write = make(), os.pwrite
    append(log, raw(0), raw(1))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:60], offset))
    with pytest.raises(OSError, match="No space"):
        append(log, raw(2))
    monkeypatch.undo()
    append(log, raw(3))
    assert left(folder) == [0, 1, 3]


def test_a_deleted_folder_is_noticed(make: Any, folder: Path, lost: Lost) -> None:
    log = make()
    append(log, *(raw(n, 30_000) for n in range(10)))
    shutil.rmtree(folder)
    with pytest.raises(OSError, match="deleted"):
        append(log, raw(10, 10))
    assert drained(log) == [0, 1] and lost == {"spool_damaged": 8}


def test_half_of_what_is_free_stays_free(make: Any, folder: Path, monkeypatch: Any, lost: Lost) -> None:
    real = os.statvfs(folder)
    free = 1 << 20

    def little(path: Any) -> os.statvfs_result:
        values = list(real)
        values[1], values[4] = 1, max(free - file_bytes(folder), 0)
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", little)
    log = make(2 << 20)
    for sequence in range(100):
        append(log, raw(sequence, 30_000))
    assert file_bytes(folder) < 0.55 * free and lost["spool_full"] > 50


def test_memory_holds_one_segment(make: Any, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "SPOOL_SEGMENT_BYTES", 100_000)
    log = make(64 << 20)
    append(log, *(raw(n, 10_000) for n in range(300)))
    assert sum(len(each.body) for _, each in log.head) <= 100_000


def test_a_file_that_fails_to_close_is_not_written_to_again(make: Any, folder: Path, monkeypatch: Any) -> None:
    """Its number is another file's then, perhaps the user's."""
    log, close = make(), os.close
    append(log, raw(0, 60_000))

    def failing(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    append(log, raw(1, 30_000))
    monkeypatch.undo()
    append(log, raw(2, 100))
    assert left(folder) == [0, 1, 2] and drained(log) == [0, 1, 2]


def test_a_spool_that_an_older_agent_halved_is_read_and_sent(ingest: IngestDouble, tmp_path: Path) -> None:
    """70 batches of two steps each; where it was full their steps were merged, two and two."""
    shutil.copytree(HALVED, tmp_path / "old")
    folder = Folder(tmp_path / "old")
    found = list(folder.batches())
    assert len(found) == 54 and sum(each.batches for each in found) == 70
    losses = [step for each in found for step in decoded(each).series[0].steps.tolist()]
    assert losses == list(range(140)) and any(decoded(each).events for each in found)
    assert folder.claim()
    transport = Transport(ingest.url, None)
    assert upload(folder, transport, 5.0)
    transport.close()
    assert len(ingest.batches) == 54 and not list(folder.batches())


@pytest.mark.parametrize("seed", range(5))
def test_names_are_those_that_nothing_replaces(folder: Path, seed: int) -> None:
    random_ = random.Random(seed)
    known, number = [], 0
    while number < 40:
        size, level = random_.choice([(1, 0), (1, 2), (2, 1), (4, 3)])
        known.append(segment.SegmentName(number, number + size - 1, level))
        if level and random_.random() < 0.5:  # it has died before it could unlink those
            known += [segment.SegmentName(each, each, 0) for each in range(number, number + size)]
        number += size
    for name in known:
        (folder / str(name)).touch()
    assert segment.names(folder) == sorted(each for each in known if not any(other.replaces(each) for other in known))


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_plain_file_is_not_read(folder: Path, kind: str) -> None:
    """A pipe would be waited for, and /dev/zero has no end."""
    path = folder / str(segment.SegmentName(0, 0, 0))
    {"pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("/dev/zero"), "folder": path.mkdir}[kind]()
    with pytest.raises(OSError):
        list(Folder(folder).batches())
