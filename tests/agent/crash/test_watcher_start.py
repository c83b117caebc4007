"""The agent's end of it, in this process: what it opens it closes, a fork lets go of it, and it disturbs nobody."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.api import attachment
from rangewatch.crash import handover, watcher_start
from rangewatch.crash.memory import anonymous_file
from rangewatch.delivery.spool.process import this_process
from rangewatch.wire.records import RankInfo
from tests.agent.crash.job import watchers
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux")
TOKEN = "a-token-that-nobody-may-see"


@pytest.fixture(autouse=True)
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANGEWATCH_WATCHER", "1")
    monkeypatch.setenv("RANGEWATCH_SPOOL_DIR", str(tmp_path))
    _before.update(open_files())
    yield
    _before.clear()
    for handle in list(attachment._attached.values()):  # of a test that failed
        handle.detach()
    wait_for(lambda: not watchers(tmp_path))


def wait_for(condition: Callable[[], Any]) -> Any:
    while not (found := condition()):  # the test's own time limit ends it
        time.sleep(0.02)
    return found


_before: set[tuple[str, int, str]] = set()
"""What other tests of this process have left to the garbage collector."""


def open_files() -> set[tuple[str, int, str]]:
    """Descriptor, inode and name of all that this process holds."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add((each.name, each.stat().st_ino, str(each.readlink())))
    return found


def descriptors() -> list[str]:
    """What this process holds of ours, but for mapped memory: that goes with the agent, which the garbage collector
    takes.
    """
    names = [name for _, _, name in open_files() - _before]
    return [name for name in names if ("memfd:rangewatch" in name and "-steps" not in name) or "pidfd" in name]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def attached(ingest: IngestDouble, **options: Any) -> tuple[nn.Module, Any, rangewatch.Handle]:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0, **options)


def test_it_is_there_while_it_is_attached_and_then_nothing_of_it_is_left(ingest: IngestDouble, tmp_path: Path) -> None:
    functions = faulthandler.enable, faulthandler.disable
    model, optimizer, handle = attached(ingest, token=TOKEN)
    (pid,) = wait_for(lambda: len(found := watchers(tmp_path)) == 1 and found)
    assert_it_has_nothing_of_ours(pid, tmp_path)
    for _ in range(3):
        step(model, optimizer)
    assert descriptors()
    child = os.fork()
    if not child:
        step(model, optimizer)
        os._exit(len(descriptors()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a forked child lets go of it"
    step(model, optimizer)
    handle.detach()
    wait_for(lambda: not descriptors())
    assert (faulthandler.enable, faulthandler.disable) == functions
    wait_for(lambda: not handle_threads())
    assert ingest.events("died") == [] and ingest.events("no_last_words") == []
    assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1, 2, 3], "the parent is still watched, the child is not"
    assert not list(tmp_path.glob("rangewatch-*/*")), "its spool is gone"


def assert_it_has_nothing_of_ours(pid: int, spool: Path) -> None:
    """It is nobody's child and in no session of ours, and the token is in no argument list and no file."""
    for name in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert not [path for path in spool.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[1]) != os.getpid() and int(fields[3]) != os.getsid(0)
    outputs = {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)}
    assert outputs == {"/dev/null"}, "a pipe to `tee` would wait for it"
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
def test_two_models_of_one_process_have_one_watcher_each_of_their_runs(ingest: IngestDouble, tmp_path: Path) -> None:
    first, second = attached(ingest, run="a"), attached(ingest, run="b")
    wait_for(lambda: watchers(tmp_path))
    for model, optimizer, _ in (first, second):
        step(model, optimizer)
    first[2].detach()
    step(second[0], second[1])
    second[2].detach()
    assert {batch.run for batch in ingest.batches} == {"a", "b"} and ingest.events("died") == []


def test_without_a_spool_the_server_hears_that_nobody_watches(
    ingest: IngestDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("RANGEWATCH_SPOOL_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    model, optimizer, handle = attached(ingest)
    wait_for(lambda: step(model, optimizer) or ingest.events("no_last_words"))
    assert [event.message for event in ingest.events("no_last_words")] == [
        "nobody will see how this process ends: there is no spool"
    ]
    handle.detach()


def test_a_path_that_is_no_text_arrives() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.fsencode("/spool/\udcff")
    said = handover.Joining(folder, this_process(), RankInfo("run", 0, 1, 0, "host", "a", 0), "http://x")
    handover.send(ours, said, [0, 0, 0])
    received = handover.receive(theirs)
    assert received is not None and received[0].folder == folder
    for each in (*received[1], ours.detach(), theirs.detach()):
        os.close(each)


def test_a_watcher_that_answers_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_start, "ANSWER_S", 0.05)
    said: list[str] = []

    class Rank:
        def hand_over(self, connection: socket.socket) -> None:
            pass

        def not_watched(self, why: str) -> None:
            said.append(why)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(watcher_start.address(tmp_path))
        listener.listen()
        waiting = watcher_start.Watch(tmp_path, Rank())
        waiting.start()
        wait_for(lambda: said)
        connection, _ = listener.accept()
        with connection:
            connection.send(b"ok")
            wait_for(lambda: not unread(connection))
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)  # it is still there
            waiting.stop()
            waiting.wait(60)
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()  # nobody has asked for another one
    assert len(said) == 1 and "has not answered" in said[0]


def unread(connection: socket.socket) -> int:
    """Bytes that the other end has not taken yet."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)


@pytest.mark.parametrize("what", ["frozen", "taken", "refused", "unstartable"])
def test_where_there_can_be_no_watcher_the_server_hears_why(
    ingest: IngestDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "frozen":
        monkeypatch.setattr(watcher_start.sys, "frozen", True, raising=False)
    elif what == "taken":
        monkeypatch.setattr(watcher_start, "peer_uid", lambda connection: 4711)
    elif what == "refused":
        monkeypatch.setattr(handover.os, "pidfd_open", refuse)
    else:
        monkeypatch.setattr(watcher_start.subprocess, "Popen", refuse)
    model, optimizer, handle = attached(ingest)
    step(model, optimizer)
    if what != "unstartable":
        wait_for(lambda: "rangewatch-watch" not in {thread.name for thread in threading.enumerate()})
    wait_for(lambda: step(model, optimizer) or ingest.events("no_last_words"))
    (event,) = ingest.events("no_last_words")
    assert event.message.startswith("nobody will see how this process ends: ")
    handle.detach()
    assert len(ingest.events("finished")) == 1


def refuse(*_: Any, **__: Any) -> None:
    raise PermissionError(1, "not here")


def test_switched_off_it_says_nothing_and_starts_nothing(ingest: IngestDouble, tmp_path: Path) -> None:
    model, optimizer, handle = attached(ingest, watcher=False)
    step(model, optimizer)
    assert descriptors() == [] and not handle_threads()
    handle.detach()
    assert ingest.events("no_last_words") == []


def handle_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rangewatch-watch"]


def test_out_of_memory_is_told_with_the_message(ingest: IngestDouble) -> None:
    _, _, handle = attached(ingest, watcher=False)
    with pytest.raises(torch.OutOfMemoryError), handle:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    (event,) = ingest.events("failed")
    assert event.message == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert event.data["out_of_memory"] is True


def test_the_watcher_needs_no_torch() -> None:
    """It would take 3 s of processor time and 240 MB on each host."""
    code = "import sys; sys.modules['torch'] = None; import rangewatch.crash.watcher.node"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
