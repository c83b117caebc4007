"""How a process ended, of real processes: told by their pidfd, whoever waits for them."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from rangewatch.crash.memory import anonymous_file
from rangewatch.crash.oom_kills import OomKills, oom_file, oom_kills
from rangewatch.crash.watcher import death_report
from rangewatch.crash.watcher.death_report import Ending, of_process
from rangewatch.crash.watcher_start import StackFile
from rangewatch.delivery.spool.process import start_ticks

pytestmark = pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux")


class Child:
    def __init__(self) -> None:
        # It ends by `exit N` or a signal, as the test says; and it has started when the pipe is read.
        self.process = subprocess.Popen(["sh", "-c", "read line; exit $line"], stdin=subprocess.PIPE)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.ticks = start_ticks(self.process.pid) or 0

    def end(self, how: int | str) -> None:
        if isinstance(how, int):
            self.process.send_signal(how)
        else:
            assert self.process.stdin is not None
            self.process.stdin.write(how.encode() + b"\n")
            self.process.stdin.flush()
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        assert poll.poll(20_000)

    def ending(self) -> Ending:
        return of_process(self.pidfd, self.process.pid, self.ticks)

    def reap(self) -> None:
        self.process.communicate()
        os.close(self.pidfd)


ENDS = [("0", Ending(exit_code=0)), ("3", Ending(exit_code=3)), (9, Ending(signal=9)), (11, Ending(signal=11))]


@pytest.mark.parametrize(("how", "ending"), ENDS)
def test_while_its_parent_has_not_waited(how: int | str, ending: Ending) -> None:
    child = Child()
    child.end(how)
    assert child.ending()._replace(core_dumped=False) == ending
    child.reap()


@pytest.mark.parametrize(("how", "ending"), ENDS)
def test_when_its_parent_has(how: int | str, ending: Ending) -> None:
    child = Child()
    child.end(how)
    child.process.communicate()
    found = child.ending()._replace(core_dumped=False)
    kernel = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
    assert found == (ending if kernel >= (6, 15) else Ending())
    os.close(child.pidfd)


def test_another_process_of_the_same_number_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child()
    child.end("3")
    monkeypatch.setattr(death_report, "_from_pidfd", lambda pidfd: None)
    assert child.ending() == Ending(exit_code=3)
    assert of_process(child.pidfd, child.process.pid, child.ticks - 1) == Ending()
    child.reap()


@pytest.mark.parametrize(
    ("line", "path"),
    [("4:cpu,memory:/job/a", "memory/job/a/memory.oom_control"), ("0::/job/a", "job/a/memory.events"),
     ("0::/../../host/path", "memory.events"), ("4:memory:/not/here", "memory/memory.oom_control")],
)  # fmt: skip
def test_strikes_of_the_out_of_memory_killer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, path: str
) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"3:cpuset:/\n{line}\n")
    counts = tmp_path / "mount" / path
    counts.parent.mkdir(parents=True)
    counts.write_text("low 0\noom 4\noom_kill 2\noom_group_kill 0\n")
    now_s = [1000.0]
    monkeypatch.setattr("rangewatch.crash.oom_kills.time", types.SimpleNamespace(monotonic=lambda: now_s[0]))
    file = oom_file(7, tmp_path / "proc", tmp_path / "mount")
    assert file == counts
    kills = OomKills(file, oom_kills(file))
    assert kills.lately() == 0
    counts.write_text("low 0\noom 9\noom_kill 3\n")
    assert kills.lately() == 1
    for _ in range(59):  # it takes long to be gone
        now_s[0] += 1.0
        kills.poll()
    assert kills.lately() == 1
    now_s[0] += 3.0
    kills.poll()
    assert kills.lately() == 0, "that was another one's"
    counts.unlink()
    assert kills.lately() == 0


def test_nobody_counts_them(tmp_path: Path) -> None:
    assert OomKills(oom_file(7, tmp_path, tmp_path), 0).lately() == 0


def test_a_strike_before_the_watcher_has_heard_of_the_rank(tmp_path: Path) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 2\n")
    before = oom_kills(counts)
    counts.write_text("oom_kill 3\n")
    assert OomKills(counts, before).lately() == 1


class TestFaulthandler:
    @pytest.fixture(autouse=True)
    def as_it_was(self) -> object:
        was = faulthandler.is_enabled()
        faulthandler.disable()
        functions = faulthandler.enable, faulthandler.disable, faulthandler.is_enabled
        yield
        assert (faulthandler.enable, faulthandler.disable, faulthandler.is_enabled) == functions
        if was:
            faulthandler.enable(sys.__stderr__)

    def test_it_is_ours_for_as_long_as_somebody_wants_it(self) -> None:
        is_enabled = faulthandler.is_enabled
        first, second = StackFile.open(), StackFile.open()
        assert first == second >= 0 and is_enabled()
        StackFile.close()
        assert is_enabled()
        StackFile.close()
        assert not is_enabled()
        with pytest.raises(OSError):
            os.fstat(first)

    def test_the_users_is_left_alone(self, tmp_path: Path) -> None:
        with (tmp_path / "own.txt").open("w") as own:
            faulthandler.enable(own)
            assert StackFile.open() == -1
            StackFile.close()
            assert faulthandler.is_enabled()
            faulthandler.disable()

    def test_enabled_by_the_user_later_it_stays(self, tmp_path: Path) -> None:
        with (tmp_path / "own.txt").open("w") as own:
            StackFile.open()
            faulthandler.enable(own)
            StackFile.close()
            assert faulthandler.is_enabled()
            faulthandler.disable()

    def test_who_enables_it_where_it_is_off_gets_the_stacks(self, tmp_path: Path) -> None:
        with (tmp_path / "own.txt").open("w") as own:
            StackFile.open()
            assert not faulthandler.is_enabled()
            faulthandler.enable(own)
            assert faulthandler.is_enabled()
            StackFile.close()
            faulthandler.disable()

    def test_a_forked_child_that_attaches_has_a_file_of_its_own(self) -> None:
        descriptor = StackFile.open()
        parents = os.fstat(descriptor).st_ino
        child = os.fork()
        if not child:
            StackFile.forked()
            own = StackFile.open()
            os._exit(own >= 0 and os.fstat(own).st_ino != parents and StackFile._originals["is_enabled"][0]())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        StackFile.close()

    def test_a_forked_child_writes_nothing_of_its_own_there(self) -> None:
        descriptor = StackFile.open()
        child = os.fork()
        if not child:
            StackFile.forked()
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.abort()
        os.waitpid(child, 0)
        assert anonymous_file.read_all(descriptor) == b""
        StackFile.close()
