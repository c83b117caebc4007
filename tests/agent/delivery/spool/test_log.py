"""A rank's own log: in order, bounded, and sound in its files whenever the process dies."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.delivery.spool import segment
from rangewatch.delivery.spool.folder import Folder
from rangewatch.delivery.spool.log import KEPT_BYTES, Log
from rangewatch.delivery.spool.record import Encoded
from rangewatch.wire.records import RangeRows
from tests.agent.delivery.spool.batches import DIGEST, assert_same, batch, decoded, encoded, opening, own, whole

STEPS = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own(tmp_path / "spool")
    return tmp_path / "spool"


@pytest.fixture
def lost() -> Counter[str]:
    return Counter()


@pytest.fixture
def make(folder: Path, lost: Counter[str]) -> Iterator[Callable[..., Log]]:
    logs: list[Log] = []

    def made(max_bytes: int = 1 << 20, ship_every: int = 1) -> Log:
        logs.append(Log(folder, max_bytes, ship_every, lambda reason, count: lost.update({reason: count})))
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
    while (first := log.first()) is not None:
        assert len(log)
        sequences.append(first.sequence)
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


@pytest.mark.parametrize(
    ("noise", "count"), [(160, 380), *(pytest.param(n, 750, marks=pytest.mark.slow) for n in (0, 160))]
)
def test_over_its_bound_it_merges_and_loses_no_spike(
    make: Any, folder: Path, lost: Counter[str], noise: int, count: int
) -> None:
    log, bad = make(1 << 18), {1000, 2300}
    for sequence in range(count):
        steps = range(sequence * STEPS, (sequence + 1) * STEPS)
        log.append(encoded(sequence, steps, bad=bad, noise=noise), opening)
        assert file_bytes(folder) <= 1 << 18
    names = segment.names(folder)
    assert max(name.level for name in names) >= 1 and not lost
    found = list(Folder(folder).batches())
    assert len(found) == len(log) < count and sum(each.batches for each in found) == count
    plain = [batch(n, range(n * STEPS, (n + 1) * STEPS), bad=bad) for n in range(count)]
    kept = [decoded(each) for each in found]
    assert_same(whole(kept, 1 << 20), whole(plain, 1 << 20))
    rows = {step for each in kept if each.ranges for step in each.ranges.steps.tolist()}
    assert bad <= rows, "steps with NaN keep their rows"
    losses = [step for each in kept for step in each.series[0].steps.tolist()]
    assert losses == list(range(count * STEPS)), "series are not merged, and nothing is there twice"
    assert drained(log) == [each.sequence for each in found]


def test_the_oldest_are_merged_the_most(make: Any, folder: Path) -> None:
    log = make(1 << 18)
    for sequence in range(620):
        log.append(encoded(sequence, range(sequence * STEPS, (sequence + 1) * STEPS)), opening)
    levels = [name.level for name in segment.names(folder)]
    assert levels[1:] == sorted(levels[1:], reverse=True), levels
    assert max(levels) - min(levels[1:]) <= 2, "but not much more than the newest"


def test_what_cannot_be_merged_is_dropped_from_the_old_end(make: Any, folder: Path, lost: Counter[str]) -> None:
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


@pytest.mark.parametrize("changes", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_merging_that_is_cut_off_by_death(
    make: Any, folder: Path, tmp_path: Path, monkeypatch: Any, changes: int
) -> None:
    """The folder is copied before each change to it that merging makes: each copy has every batch once."""
    copies: list[Path] = []

    def copying(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any) -> Any:
            copies.append(Path(shutil.copytree(folder, tmp_path / f"copy{len(copies)}")))
            return change(*args)

        return changed

    log = make(1 << 18)
    log.append(encoded(0, range(STEPS), noise=500), opening)
    monkeypatch.setattr(Path, "rename", copying(Path.rename))
    monkeypatch.setattr(Path, "unlink", copying(Path.unlink))
    sequence = 1
    while len(copies) < changes:
        log.append(encoded(sequence, range(sequence * STEPS, (sequence + 1) * STEPS), noise=500), opening)
        sequence += 1
    monkeypatch.undo()
    for copy in copies:
        found = list(Folder(copy).batches())
        assert [each.sequence for each in found] == sorted({each.sequence for each in found})
        losses = [step for each in found for step in decoded(each).series[0].steps.tolist()]
        assert losses == list(range(len(losses))) and len(losses) >= 1000, copy


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


def test_damage_is_noticed_and_counted_by_the_living_rank_too(make: Any, folder: Path, lost: Counter[str]) -> None:
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


def test_a_deleted_folder_is_noticed(make: Any, folder: Path, lost: Counter[str]) -> None:
    log = make()
    append(log, *(raw(n, 30_000) for n in range(10)))
    shutil.rmtree(folder)
    with pytest.raises(OSError, match="deleted"):
        append(log, raw(10, 10))
    assert drained(log) == [0, 1] and lost == {"spool_damaged": 8}


def test_half_of_what_is_free_stays_free(make: Any, folder: Path, monkeypatch: Any, lost: Counter[str]) -> None:
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
    assert sum(len(each.body) for _, each in log._head) <= 100_000


def test_a_slow_training_with_one_step_a_batch_is_merged_too(make: Any, folder: Path, lost: Counter[str]) -> None:
    """Its rows are nearly all of a batch: pairs that share none are as large as before, and would be dropped."""
    log, count, tensors = make(1 << 18), 160, 400
    for sequence in range(count):
        values = np.random.default_rng(sequence).random((tensors, 1))
        rows = RangeRows(np.array([sequence + 1]), np.arange(tensors), {"amax": values})
        body = wire.encode(msgspec.structs.replace(batch(sequence, ()), ranges=rows))
        log.append(Encoded(body, tensors, DIGEST, sequence), opening)
    assert not lost
    largest = max(np.max(each.ranges.columns["amax"]) for each in map(decoded, Folder(folder).batches()) if each.ranges)
    assert largest == max(np.random.default_rng(sequence).random((tensors, 1)).max() for sequence in range(count))


def test_a_segment_that_cannot_be_read_is_no_end_of_merging(make: Any, folder: Path, lost: Counter[str]) -> None:
    log, count = make(1 << 18), 160
    for sequence in range(count):
        log.append(encoded(sequence, range(sequence * STEPS, (sequence + 1) * STEPS)), opening)
    gone = folder / str(segment.names(folder)[2])
    held = sum(found.batch.batches for found in segment.read(gone))
    gone.unlink()
    for sequence in range(count, 3 * count):
        log.append(encoded(sequence, range(sequence * STEPS, (sequence + 1) * STEPS)), opening)
    assert lost == {"spool_damaged": held}


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
