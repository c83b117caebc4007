"""A folder that a rank has left: who may have it, what is in it, and that nothing is lost when a rank is killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rangewatch.core import limits
from rangewatch.delivery.spool import process
from rangewatch.delivery.spool import queue as homes
from rangewatch.delivery.spool.folder import NEWEST_FILE, RANK_FILE, Folder, SpoolError, newest_mark
from rangewatch.delivery.spool.process import Process, is_gone, this_process
from rangewatch.delivery.spool.queue import Home
from tests.agent.delivery.spool.batches import DIGEST, INFO, encoded, opening
from tests.agent.doubles import Lost


@pytest.fixture
def home(tmp_path: Path) -> Any:
    made = Home(tmp_path / "job" / "spool", INFO, "http://server:1", 1 << 20, Lost())
    yield made
    made.close()


def test_it_says_whose_it_is(home: Home) -> None:
    folder = Folder(home.folder)
    assert folder.info == INFO and folder.url == "http://server:1" and folder.pid == os.getpid()
    assert folder.owner.process == this_process()


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"format": 1}', b"\xff\xfe", b"[]"])
def test_without_an_owner_it_is_no_spool(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / RANK_FILE).write_bytes(content)
    with pytest.raises(SpoolError):
        Folder(tmp_path)


def test_a_later_format_is_left_alone(home: Home) -> None:
    owner = msgspec.structs.replace(Folder(home.folder).owner, format=2)
    (home.folder / RANK_FILE).write_bytes(msgspec.json.encode(owner))
    with pytest.raises(SpoolError, match="later version"):
        Folder(home.folder)


def test_it_is_in_use_while_the_rank_lives_and_one_uploads(home: Home) -> None:
    home.log.append(encoded(0, range(4)), opening)
    folder, other = Folder(home.folder), Folder(home.folder)
    assert folder.is_in_use() and not folder.claim()
    home.close()
    assert not folder.is_in_use() and folder.claim() and folder.claim()
    assert other.is_in_use() and not other.claim()
    folder.release()
    assert other.claim()
    other.remove()
    assert not home.folder.exists() and not home.folder.parent.exists()


def test_a_forked_child_does_not_keep_it(home: Home) -> None:
    home.log.append(encoded(0, range(4)), opening)
    context = multiprocessing.get_context("fork")
    has_begun, end = context.Event(), context.Event()
    child = context.Process(target=lambda: (has_begun.set(), end.wait(60)))
    child.start()
    try:
        assert has_begun.wait(60)
        assert Folder(home.folder).is_in_use()
        home.close()
        assert Folder(home.folder).claim()
    finally:
        end.set()
        child.join()


def test_an_end_with_nothing_left_leaves_nothing(home: Home) -> None:
    home.log.append(encoded(0, range(4)), opening)
    home.log.remove_first()
    home.close()
    assert not home.folder.exists() and not home.folder.parent.exists()


def test_processes_that_are_gone() -> None:
    mine = this_process()
    assert not is_gone(mine) and mine.start_ticks > 0
    assert is_gone(msgspec.structs.replace(mine, start_ticks=mine.start_ticks + 1)), "its pid is somebody else's now"
    assert is_gone(msgspec.structs.replace(mine, boot_id="before")), "the machine has started anew"
    assert not is_gone(msgspec.structs.replace(mine, pid=2**22, pid_namespace="other")), "of another container: unknown"
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    theirs = msgspec.structs.replace(mine, pid=child.pid, start_ticks=process.start_ticks(child.pid) or 0)
    assert child.stdout is not None
    child.stdout.read()
    while process.start_ticks(child.pid) != 0:
        pass
    assert is_gone(theirs), "a zombie"
    child.wait()
    assert is_gone(theirs)


def test_batches_are_read_and_acknowledged_in_order(home: Home) -> None:
    for sequence in range(6):
        home.log.append(encoded(sequence, range(sequence, sequence + 1), noise=30_000), opening)
    home.close()
    folder = Folder(home.folder)
    assert folder.openings == {DIGEST: opening()} and folder.next_sequence == 6
    for batch in folder.batches():
        if batch.sequence < 4:
            folder.acknowledge(batch.sequence)
    assert [batch.sequence for batch in Folder(home.folder).batches()] == [4, 5]
    assert Folder(home.folder).next_sequence == 6


def test_a_last_batch_is_appended(home: Home) -> None:
    home.log.append(encoded(0, range(4)), opening)
    home.log.append(encoded(1, range(4, 8)), opening)
    home.close()
    folder = Folder(home.folder)
    folder.append(encoded(folder.next_sequence, range(8, 9))._replace(catalogue="other"), b"its opening")
    folder.append(encoded(folder.next_sequence, range(9, 10)))
    assert [batch.sequence for batch in Folder(home.folder).batches()] == [0, 1, 2, 3]
    assert folder.opening("other") == b"its opening" and folder.opening("../rank.json") is None


def test_sequences_that_went_past_a_full_disk_are_not_used_again(home: Home) -> None:
    home.log.append(encoded(4, range(4)), opening)
    assert Folder(home.folder).next_sequence == 5
    home.log.note_newest(9)
    assert Folder(home.folder).next_sequence == 10
    for damaged in (b"", b"x" * 12, newest_mark(99)[:-1]):
        (home.folder / NEWEST_FILE).write_bytes(damaged)
        assert Folder(home.folder).next_sequence == 5


KILLED = """
import os, sys
from pathlib import Path
from rangewatch.delivery.spool.queue import Home
from tests.agent.doubles import Lost
from tests.agent.delivery.spool.batches import INFO, encoded, opening
home = Home(Path(sys.argv[1]), INFO, "http://127.0.0.1:9", 1 << 20, Lost())
for sequence in range(10**9):
    home.log.append(encoded(sequence, range(sequence * 4, sequence * 4 + 4), noise=500), opening)
    os.write(1, b".")
    if sequence % 3 == 2 and len(home.log) > 20:
        home.log.remove_first()
"""


@pytest.mark.parametrize("appended", [1, 400, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_killed_rank_loses_nothing_that_was_appended(tmp_path: Path, appended: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "spool")], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    seen = len(child.stdout.read(appended))
    child.send_signal(signal.SIGKILL)
    seen += len(child.stdout.read())
    child.wait()
    folder = Folder(tmp_path / "spool")
    assert folder.claim() and is_gone(folder.owner.process)
    found = list(folder.batches())
    sequences = [batch.sequence for batch in found]
    gaps = [after - before for before, after in itertools.pairwise(sequences) if after != before + 1]
    # Past its limit the spool drops whole segments, the oldest that are not on their way: behind the first.
    assert not gaps or (len(gaps) == 1 and appended == 1500)
    assert seen - 1 <= sequences[-1] <= seen
    assert folder.next_sequence == sequences[-1] + 1


def test_the_job_folder_may_go_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter(
        [FileNotFoundError, FileNotFoundError, None, FileNotFoundError, FileNotFoundError, FileNotFoundError]
    )
    make = Path.mkdir

    def racing(self: Path, *args: Any, **options: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", racing)
    homes._make(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        homes._make(tmp_path / "b")


def test_nothing_of_it_needs_torch() -> None:
    modules = "rangewatch.delivery.spool.upload, rangewatch.delivery.spool.queue, rangewatch.commands.replay"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_pid_that_is_free() -> None:
    assert is_gone(msgspec.structs.replace(this_process(), pid=2**22 + 1)) and not is_gone(Process(2**22 + 1))


def test_the_bound_leaves_room_for_segments() -> None:
    assert limits.SPOOL_BYTES >= limits.SPOOL_SEGMENTS * limits.SPOOL_SEGMENT_BYTES


def test_lost_is_told(tmp_path: Path) -> None:
    lost = Lost()
    made = Home(tmp_path / "s", INFO, "u", 1 << 20, lost)
    for sequence in range(60):
        made.log.append(encoded(sequence, (), noise=60_000), opening)
    made.close()
    assert lost["spool_full"] > 0


def test_a_later_format_may_have_other_fields(home: Home) -> None:
    (home.folder / RANK_FILE).write_bytes(b'{"format": 2, "who": "somebody"}')
    with pytest.raises(SpoolError, match="later version"):
        Folder(home.folder)


def test_what_is_appended_while_it_is_sent_is_sent_too(home: Home) -> None:
    """The watcher adds a death report; one who sends the folder at that moment removes it when he is done."""
    for sequence in range(3):
        home.log.append(encoded(sequence, range(sequence, sequence + 1)), opening)
    home.close()
    folder, seen = Folder(home.folder), []
    for batch in folder.batches():
        seen.append(batch.sequence)
        folder.acknowledge(batch.sequence)
        if batch.sequence in (1, 3):
            folder.append(encoded(folder.next_sequence, range(9, 10)))
    assert seen == [0, 1, 2, 3, 4] and list(folder.batches()) == []
