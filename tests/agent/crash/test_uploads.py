"""What the watcher sends, with ranks that this process plays: full disks, damaged memory, processes that are gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rangewatch.crash.handover import Joining
from rangewatch.crash.memory import anonymous_file, layout
from rangewatch.crash.memory.shared_state import SharedState
from rangewatch.crash.watcher import node, uploads
from rangewatch.crash.watcher.rank import Rank
from rangewatch.crash.watcher.uploads import Uploads, Waiting
from rangewatch.delivery.spool.folder import Folder, Owner, write_owner
from rangewatch.delivery.spool.process import Process, start_ticks, this_process
from rangewatch.delivery.spool.upload import upload
from rangewatch.recording.rows.step_buffer import StepBuffer
from rangewatch.wire.records import Batch, Event, RankInfo, TensorEntry
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux")


class Played:
    """A rank whose process is a `sleep`, and whose memory is written here; or whose process is that of the tests."""

    def __init__(self, folder: Path, url: str, *, is_here: bool = False) -> None:
        self.process = None if is_here else subprocess.Popen(["sleep", "60"])
        pid = self.process.pid if self.process is not None else os.getpid()
        self.joining = Joining(
            os.fsencode(folder), Process(pid, start_ticks(pid) or 0), RankInfo("run", 0, 1, 0, "host", "a", 0), url
        )
        folder.mkdir(parents=True)
        write_owner(folder, Owner(1, self.joining.info, url, self.joining.process))
        self.kept = SharedState(is_shared=True)
        self.kept.tensor(0, TensorEntry("layer", "output", 0, "float32", (2,), 0, "Linear"))
        buffer = StepBuffer(self.kept)
        buffer.row.grow()
        for step in range(3):
            buffer.row.call_count[0] = buffer.row.numel[0] = 1.0
            buffer.close(step)
        self.kept.open_step(3)
        self.kept.event(Event("xid", 1, 2, "the card fell off the bus"))
        self.rank = Rank(self.joining, [os.pidfd_open(pid), *map(os.dup, self.kept.descriptors)])

    def die(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(autouse=True)
def pauses_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "POLL_S", 0.01)
    monkeypatch.setattr(uploads, "PAUSE_S", 0.01)
    monkeypatch.setattr(uploads, "Waiting", partial(Waiting, pause_s=0.01))
    monkeypatch.setattr(uploads, "TURN_S", 0.05)


@pytest.fixture
def played(tmp_path: Path, ingest: IngestDouble) -> Iterator[Played]:
    found = Played(tmp_path / "job" / "rank", ingest.url)
    yield found
    found.die()
    found.rank.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    while not (found := condition()):  # the test's own time limit ends it
        time.sleep(0.01)
    return found


def sent(played: Played) -> Uploads:
    uploads = Uploads(lambda: False)
    found = played.rank.ended()
    assert found is not None
    uploads.add(found[0], None, found[1])
    wait_for(lambda: uploads.are_done)
    return uploads


def died(ingest: IngestDouble) -> Event:
    (event,) = ingest.events("died")
    return event


def test_steps_events_and_the_end_arrive_and_the_folder_goes(played: Played, ingest: IngestDouble) -> None:
    began_s = time.monotonic()
    played.die()
    uploaded = sent(played)
    assert uploaded.taken_s > began_s
    assert sorted(ingest.tensors()["layer", "output", 0]) == [0, 1, 2]
    assert [event.message for event in ingest.events("xid")] == ["the card fell off the bus"]
    assert (died(ingest).step, died(ingest).data["signal"]) == (3, 9)
    assert not played.rank.folder.exists()


def test_on_a_full_disk_they_arrive_too(played: Played, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "append", full)
    played.die()
    sent(played)
    assert sorted(ingest.tensors()["layer", "output", 0]) == [0, 1, 2] and died(ingest).step == 3


def test_a_server_that_is_away_gets_them_later(
    played: Played, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []

    def counted(*arguments: Any) -> bool:
        turns.append(upload(*arguments))
        return turns[-1]

    monkeypatch.setattr(uploads, "upload", counted)
    ingest.stop()
    played.die()
    tested = Uploads(lambda: False)
    found = played.rank.ended()
    assert found is not None
    tested.add(found[0], None, found[1])
    wait_for(lambda: len(turns) > 2)
    assert not tested.are_done and not any(turns)
    ingest.start()
    wait_for(lambda: tested.are_done)
    assert died(ingest).step == 3


def test_out_of_patience_they_stay_for_replay(played: Played, ingest: IngestDouble) -> None:
    ingest.stop()
    played.die()
    uploads = Uploads(lambda: True)
    found = played.rank.ended()
    assert found is not None
    uploads.add(found[0], None, found[1])
    wait_for(lambda: uploads.are_done)
    left = Folder(played.rank.folder)
    assert left.claim() and [batch.sequence for batch in left.batches()] == [0]
    left.release()
    ingest.start()


@pytest.mark.parametrize("is_ours", [False, True])
def test_what_a_server_refuses_stays_for_replay(played: Played, ingest: IngestDouble, is_ours: bool) -> None:
    take = ingest._take
    answer = b'{"error": "no", "code": "too_large"}' if is_ours else b"<html>413 Request Entity Too Large</html>"
    ingest._take = lambda each: (413, {}, answer) if isinstance(each, Batch) else take(each)
    played.die()
    tested = Uploads(lambda: True)
    found = played.rank.ended()
    assert found is not None
    tested.add(found[0], None, found[1])
    wait_for(lambda: tested.are_done)
    left = Folder(played.rank.folder)
    assert left.claim() and [batch.sequence for batch in left.batches()] == [0]
    left.release()


def test_damaged_memory_leaves_how_it_ended(played: Played, ingest: IngestDouble) -> None:
    played.kept.cells[layout.area_at(0) + layout.OFFSET] = -(2**40)
    os.truncate(played.kept.descriptors[1], 3)
    played.die()
    sent(played)
    assert died(ingest).data["signal"] == 9
    assert "layer" not in {fqn for fqn, _, _ in ingest.tensors()}


def test_a_folder_that_was_removed_meanwhile_is_made_anew(played: Played, ingest: IngestDouble) -> None:
    Folder(played.rank.folder).remove()
    played.kept.sending(6, (0, 1))
    played.kept.sent()
    played.die()
    sent(played)
    assert died(ingest).step == 3 and ingest.batches[0].sequence == 7, "no sequence is used twice"


def test_one_that_said_goodbye_has_not_died(played: Played, ingest: IngestDouble) -> None:
    played.kept.end(layout.DETACHED)
    assert played.rank.has_left()
    played.die()
    sent(played)
    assert ingest.events("died") == [] and sorted(ingest.tensors()["layer", "output", 0]) == [0, 1, 2]


def test_one_that_has_told_of_its_failure_goes_on_unwatched(played: Played, ingest: IngestDouble) -> None:
    played.kept.end(layout.FAILED)
    assert played.rank.has_left(), "a search that tries a thousand models would have a thousand of them open"
    played.die()
    sent(played)
    assert ingest.events("died") == []


def test_a_program_in_its_place_is_seen(tmp_path: Path) -> None:
    kept = SharedState(is_shared=True)
    gate, opens = os.pipe()
    pid = os.fork()  # what the parent has mapped the child has too
    if not pid:
        os.read(gate, 1)
        os.execvp("sleep", ["sleep", "60"])
    ticks = start_ticks(pid) or 0
    rank = Rank(
        Joining(os.fsencode(tmp_path), Process(pid, ticks), RankInfo("run", 0, 1, 0, "host", "a", 0), ""),
        [os.pidfd_open(pid), *map(os.dup, kept.descriptors)],
    )
    assert not rank.is_replaced()
    os.write(opens, b"x")
    wait_for(rank.is_replaced)
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not rank.is_replaced(), "it has ended"
    os.waitpid(pid, 0)
    for each in (gate, opens):
        os.close(each)
    rank.close()
    kept.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as found:
        found.bind(f"\0rangewatch-test-{os.getpid()}")
        found.listen(256)
        yield found


@pytest.fixture
def watching(tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """The watcher's loop, on a thread: until all is done and `LINGER_S` is 0."""
    monkeypatch.setattr(node.signal, "signal", lambda *handler: None)
    monkeypatch.setattr(node, "LINGER_S", 1000.0)
    watcher = node.Node(listener, tmp_path / "job")
    thread = threading.Thread(target=watcher.run, daemon=True)
    thread.start()
    return thread


def join(listener: socket.socket, played: Played) -> socket.socket:
    """As a rank does; once it has been taken in."""
    connection = connected(listener)
    said = [msgspec.json.encode(played.joining)]
    socket.send_fds(connection, said, [played.rank.pidfd, *played.kept.descriptors])
    assert connection.recv(16) == b"ok"
    return connection


def test_who_says_nothing_or_anything_keeps_no_rank_waiting(
    played: Played, ingest: IngestDouble, listener: socket.socket, watching: threading.Thread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(node, "MOST_UNKNOWN", 8)
    strangers = []
    for number in range(64):
        strangers.append(connected(listener))
        if number % 4 == 0:
            strangers[-1].send(b"\xff" * 100)
        elif number % 4 == 1:
            socket.send_fds(strangers[-1], [b"{}"], [0] * 9)
    rank = join(listener, played)
    assert strangers[2].recv(1) == b"", "the oldest of those who say nothing has gone"
    played.die()
    wait_for(lambda: ingest.events("died"))
    for each in (*strangers, rank):
        each.close()
    monkeypatch.setattr(node, "LINGER_S", 0.0)
    wait_for(lambda: not watching.is_alive())


def test_who_parts_from_it_is_seen_though_the_process_goes_on(
    played: Played, tmp_path: Path, ingest: IngestDouble, listener: socket.socket, watching: threading.Thread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One is another program by now, one has detached."""
    detached = Played(tmp_path / "job" / "detached", ingest.url, is_here=True)
    connections = [join(listener, each) for each in (played, detached)]
    detached.kept.end(layout.DETACHED)
    for each in connections:
        each.close()
    monkeypatch.setattr(node, "LINGER_S", 0.0)
    wait_for(lambda: not watching.is_alive())
    assert died(ingest).data["replaced"] and not played.rank.folder.exists()
    assert not detached.rank.folder.exists(), "what it had left is sent"
    detached.rank.close()


def test_patience_ends_sooner_where_the_job_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    # Of the module alone: the process's own clock and signals are every other thread's too.
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda: now_s))
    names = {name: value for name, value in vars(signal).items() if name.startswith("SIG")}
    monkeypatch.setattr(node, "signal", SimpleNamespace(**names, signal=lambda *handler: None))
    with socket.socket() as listener:
        watcher = node.Node(listener, tmp_path / "job")
        now_s += node.PATIENCE_STOPPED_S + 1
        assert not watcher._is_out_of_patience()
        watcher._stopped(signal.SIGTERM, None)
        assert watcher._is_out_of_patience()
        watcher._ranks[0] = None  # type: ignore[assignment]
        assert not watcher._is_out_of_patience(), "while a rank lives nobody is in a hurry"


@pytest.fixture
def waiting_in_vain(played: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[node.Node]:
    """A watcher whose ranks are gone, and whose server takes connections and says nothing."""
    monkeypatch.setattr(node.signal, "signal", lambda *handler: None)
    monkeypatch.setattr(node, "LINGER_S", 0.0)
    answers = threading.Event()
    monkeypatch.setattr(uploads, "upload", lambda *_: answers.wait(60))
    with socket.socket() as listener:
        watcher = node.Node(listener, tmp_path / "job")
        played.die()
        found = played.rank.ended()
        assert found is not None
        watcher._uploads.add(found[0], None, found[1])
        wait_for(lambda: watcher._uploads._busy)
        yield watcher
        answers.set()
        wait_for(lambda: watcher._uploads.are_done)


def test_it_ends_at_the_second_sigterm_whatever_its_server_does(waiting_in_vain: node.Node) -> None:
    """Seen: deaf to SIGTERM for as long as a try took to fail, and for one of each folder that waited."""
    assert not waiting_in_vain._is_done()
    waiting_in_vain._stopped(signal.SIGTERM, None)
    assert not waiting_in_vain._is_done(), "the first is the job's, which it gives fifteen seconds"
    waiting_in_vain._stopped(signal.SIGTERM, None)
    assert waiting_in_vain._is_done()
    waiting_in_vain._ranks[0] = None  # type: ignore[assignment]
    assert not waiting_in_vain._is_done(), "while a rank lives it is watched"


def test_two_sigterms_while_ranks_live_are_one(waiting_in_vain: node.Node) -> None:
    """What the last rank leaves has its fifteen seconds, however often the job was told to stop."""
    waiting_in_vain._ranks[0] = None  # type: ignore[assignment]
    for _ in range(3):
        waiting_in_vain._stopped(signal.SIGTERM, None)
    del waiting_in_vain._ranks[0]
    assert not waiting_in_vain._is_out_of_patience()
    assert not waiting_in_vain._is_done()
    waiting_in_vain._stopped(signal.SIGTERM, None)
    assert waiting_in_vain._is_done()


def test_past_its_patience_it_waits_for_no_try_but_while_batches_are_taken(
    waiting_in_vain: node.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "PATIENCE_STOPPED_S", 0.0)
    assert not waiting_in_vain._is_done()
    monkeypatch.setattr(node, "PATIENCE_S", 0.0)
    assert waiting_in_vain._is_done()
    waiting_in_vain._uploads.taken_s = time.monotonic()
    assert not waiting_in_vain._is_done()
    waiting_in_vain._stopped(signal.SIGTERM, None)  # late: the ranks are gone for longer than a stop is given
    assert waiting_in_vain._is_done()


def connected(listener: socket.socket) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.connect(listener.getsockname())
    return found


def test_who_has_gone_before_being_taken_in_harms_nobody(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.signal, "signal", lambda *handler: None)
    listener.setblocking(False)
    node.Node(listener, tmp_path / "job")._accept()  # nobody is there


def leave_behind(folder: Path, url: str, *, is_old: bool = True) -> None:
    """As a rank of a job of long ago does whose watcher was killed too."""
    left = Played(folder, url)
    left.die()
    left.rank.close()
    pid, ticks = left.joining.process.pid, left.joining.process.start_ticks
    gone = msgspec.structs.replace(this_process(), pid=pid, start_ticks=ticks)
    write_owner(folder, Owner(1, left.joining.info, url, gone))
    if is_old:
        os.utime(folder, (0, 0))


def test_who_died_now_waits_for_nothing_that_earlier_jobs_have_left(
    played: Played, tmp_path: Path, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: twenty spools whose servers were gone, five seconds of patience for each, and a death told last."""
    answers = threading.Event()

    def hanging(folder: Folder, *rest: Any) -> bool:
        if folder.path.parent.name == "earlier":
            answers.wait()
        return upload(folder, *rest)

    monkeypatch.setattr(uploads, "upload", hanging)
    monkeypatch.setattr(node.signal, "signal", lambda *handler: None)
    leave_behind(tmp_path / "earlier" / "rank", ingest.url)
    with socket.socket() as listener:
        watcher = node.Node(listener, tmp_path / "job")
        watcher._take_orphans()
        wait_for(lambda: not watcher._orphans.are_done)
        played.die()
        found = played.rank.ended()
        assert found is not None
        watcher._uploads.add(found[0], None, found[1])
        wait_for(lambda: ingest.events("died"))
        answers.set()
        wait_for(lambda: watcher._uploads.are_done and watcher._orphans.are_done)


def test_a_server_that_takes_nothing_is_asked_less_and_less(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(uploads.time, "monotonic", lambda: now_s)
    waiting = Waiting(Folder(played.rank.folder), None, [])
    pauses = []
    for _ in range(7):
        waiting.postpone(None)
        pauses.append(waiting.due_s - now_s)
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15]
    waiting.postpone(60.0)
    assert waiting.due_s - now_s == 60


def test_before_its_time_a_folder_has_no_turn(
    played: Played, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[Folder] = []
    looks = [0]
    turn = Uploads._turn

    def look(tested: Uploads) -> bool:
        looks[0] += 1
        return turn(tested)

    monkeypatch.setattr(Uploads, "_turn", look)
    monkeypatch.setattr(uploads, "upload", lambda folder, *rest: bool(turns.append(folder)))
    played.die()
    found = played.rank.ended()
    assert found is not None
    tested = Uploads(lambda: bool(turns) and is_over.is_set())
    is_over = threading.Event()
    monkeypatch.setattr(Waiting, "postpone", lambda waiting, _: setattr(waiting, "due_s", time.monotonic() + 60))
    tested.add(found[0], None)
    wait_for(lambda: looks[0] > 3)
    assert len(turns) == 1
    is_over.set()
    wait_for(lambda: tested.are_done)


def test_what_earlier_jobs_left_gets_the_token_of_its_own_server_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RANGEWATCH_TOKEN is for this job's server; an old folder may name any other."""
    monkeypatch.setattr(node.signal, "signal", lambda *handler: None)
    monkeypatch.setenv("RANGEWATCH_TOKEN", "of-this-server")
    here, elsewhere = "http://127.0.0.1:1", "http://127.0.0.1:2"
    for name, url in (("a", here), ("b", elsewhere)):
        leave_behind(tmp_path / name / "rank", url)
    leave_behind(tmp_path / "c" / "rank", "http://127.0.0.1:3", is_old=False)  # its own watcher may be at it
    given: dict[str, str | None] = {}
    with socket.socket() as listener:
        watcher = node.Node(listener, tmp_path / "job")
        watcher._tokens[here] = "of-this-server"
        monkeypatch.setattr(watcher._orphans, "add", lambda folder, token: given.update({folder.url: token}))
        watcher._take_orphans()
    assert given == {here: "of-this-server", elsewhere: None}
