"""A rank that stops: when it is said, and what the ranks say that wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from rangewatch.collectors.collectives import hang
from rangewatch.collectors.collectives.hang import FIRST_STEPS_S, LEAST_S, STEPS, HangWatch
from rangewatch.collectors.collectives.stuck_timer import StuckTimer
from tests import forked
from tests.agent.collectors.ranks import Watched, run_ranks

RANKS, MISSING, SKIPPED = 3, 2, 5


def scenario(rank: int, folder: Path) -> dict[str, Any]:
    watched = Watched(rank, RANKS, hang_s=1.0)
    watched.start()
    watched.look_often()
    for step in range(8):
        watched.step = step
        dist.all_reduce(torch.ones(4))
        if step == SKIPPED and rank == MISSING:
            oversleep(folder)
        dist.all_reduce(torch.ones(6, dtype=torch.float64))
        time.sleep(0.05)
    (folder / f"{rank}.done").touch()
    wait_for(lambda: any(kind == "hang_over" for kind, _, _ in watched.events))
    watched.stop()
    return {"events": watched.events, "rows": watched.rows()}


def oversleep(folder: Path) -> None:
    """Until the others have said that they wait: the test's, and not the clock's, end of the hang."""
    wait_for(lambda: len(list(folder.glob("*.hung"))) == RANKS)


def wait_for(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)


def scenario_with_marks(rank: int, folder: Path) -> dict[str, Any]:
    original = Watched.collect

    def collect(self: Watched) -> None:
        original(self)
        if any(kind == "stacks" for kind, _, _ in self.events):
            (folder / f"{rank}.hung").touch()

    Watched.collect = collect  # type: ignore[method-assign]
    return scenario(rank, folder)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(scenario_with_marks, RANKS, tmp_path_factory.mktemp("hang"))


def reported(found: dict[str, Any], kind: str) -> tuple[str, dict[str, Any]]:
    return next((message, data) for each, message, data in found["events"] if each == kind)


@pytest.mark.parametrize("rank", [0, 1])
def test_those_who_wait_say_for_what(ranks: list[dict[str, Any]], rank: int) -> None:
    message, data = reported(ranks[rank], "hang")
    group = data["groups"][0]
    waiting = group["waiting"][0]
    sequence = 2 * SKIPPED + 2
    assert (group["enqueued"], group["completed"]) == (sequence, sequence - 1)
    assert (waiting["op"], waiting["sequence"], waiting["bytes"], waiting["dtype"]) == (
        "all_reduce", sequence, 48, "float64",
    )  # fmt: skip
    assert group["flight_recorder"] is None or group["flight_recorder"]["last_enqueued_collective"] == sequence
    assert data["step"] == SKIPPED and data["is_waiting"]
    assert f"all_reduce {sequence} of group '0' (48 bytes of float64)" in message
    assert data["line"]["function"] == "scenario" and data["line"]["file"] == __file__
    assert "all_reduce" in reported(ranks[rank], "stacks")[1]["text"]


def test_the_missing_one_says_where_it_is(ranks: list[dict[str, Any]]) -> None:
    message, data = reported(ranks[MISSING], "hang")
    assert not data["is_waiting"] and data["groups"][0]["waiting"] == ()
    assert data["groups"][0]["enqueued"] == data["groups"][0]["completed"] == 2 * SKIPPED + 1
    assert "in no collective" in message
    assert data["line"]["function"] == "wait_for"


def test_it_says_when_the_hang_is_over(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        kinds = [kind for kind, _, _ in found["events"] if kind.startswith("hang")]
        assert kinds[:2] == ["hang", "hang_over"]
        waited = [row for row in found["rows"] if row["sequence"] == 2 * SKIPPED + 2]
        assert len(waited) == 1 and waited[0]["duration_s"] > 0, "its row comes once it has ended"


def steps(watch: HangWatch, each_s: float, count: int) -> float:
    for step in range(count):
        assert watch.check(step, 10 * step, step * each_s) == ""
    return (count - 1) * each_s


def test_a_stop_is_told_once_and_when_it_is_over() -> None:
    watch = HangWatch()
    last_s = steps(watch, 0.5, 20)
    assert watch.threshold_s == LEAST_S
    assert [watch.check(19, 190, last_s + later) for later in (1, 7.9, LEAST_S, 9, 30)] == ["", "", "hang", "", ""]
    assert watch.check(20, 200, last_s + 40) == "hang_over"
    assert watch.threshold_s == LEAST_S, "a hang says nothing about how long steps take"


def test_long_steps_are_no_hang() -> None:
    watch = HangWatch()
    last_s = steps(watch, 3.0, 20)
    assert watch.threshold_s == pytest.approx(STEPS * 3.0)
    assert watch.check(19, 190, last_s + 29) == ""


def test_collectives_within_a_step_are_an_advance() -> None:
    watch = HangWatch()
    last_s = steps(watch, 0.5, 20)
    for minute in range(1, 5):
        for second in range(0, 60, 5):
            assert watch.check(19, 190 + 100 * minute + second, last_s + 60 * minute + second) == ""


def test_the_first_step_may_compile() -> None:
    watch = HangWatch()
    assert [watch.check(0, 0, now_s) for now_s in (0, 30, FIRST_STEPS_S - 1, FIRST_STEPS_S)] == ["", "", "", "hang"]


STUCK = """
import sys
from pathlib import Path
from rangewatch.collectors.collectives.stuck_timer import StuckTimer
timer = StuckTimer(Path(sys.argv[1]), 0.1)
timer.start()
assert timer.why_not == "", timer.why_not
assert timer.wind() == ""
def holds_the_gil():
    sum(range(20_000_000))  # a loop in C that never lets go of it
holds_the_gil()
print(Path(sys.argv[1]).read_text())
print("again", timer.wind())
timer.stop()
assert not Path(sys.argv[1]).exists()
"""


def test_stacks_without_the_gil(tmp_path: Path) -> None:
    path = tmp_path / "own" / "stacks.txt"
    ran = forked.rank.run("-c", STUCK, path)
    assert ran.returncode == 0, ran.stderr
    written, _, again = ran.stdout.partition("again")
    assert "in holds_the_gil" in written and "in holds_the_gil" in again


def test_the_users_own_timer_of_faulthandler_is_left_alone(tmp_path: Path) -> None:
    """There is one a process, and ours is none of them: both write."""
    script = STUCK.replace("holds_the_gil()\nprint", "faulthandler.dump_traceback_later(0.1)\nholds_the_gil()\nprint")
    script = script.replace("import sys", "import faulthandler, sys", 1)
    ran = forked.rank.run("-c", script, tmp_path / "s")
    assert "Timeout (0:00:00.1" in ran.stderr and "in holds_the_gil" in ran.stdout and ran.returncode == 0


SUSPENDED = """
import os, signal, sys
from pathlib import Path
from rangewatch.collectors.collectives.stuck_timer import StuckTimer
timer = StuckTimer(Path(sys.argv[1]), 0.1)
timer.start()
os.kill(os.getpid(), signal.SIGSTOP)
text = timer.wind()
timer.stop()
print(timer.why_not, text)
"""


def test_a_process_that_was_suspended_is_not_stuck(tmp_path: Path) -> None:
    """To read the frames of threads that run again has ended trainings by a segmentation fault."""
    process = forked.rank.start("-c", SUSPENDED, tmp_path / "s", stdout=subprocess.PIPE, text=True)
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    time.sleep(0.2)  # longer than the timer's
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=50)[0].strip() == "" and process.returncode == 0


def test_the_end_of_the_process_is_no_time_for_a_signal(tmp_path: Path) -> None:
    """The interpreter gives the signal its default back, which ends a process."""
    script = STUCK.split("assert timer.wind()")[0]
    script += "timer._stop.set(); timer._thread.join(); timer._timer.set(0.1)\n"
    script += "import atexit\n"
    script += "atexit._run_exitfuncs()\nfaulthandler = sys.modules['faulthandler']\n"
    script += "faulthandler.unregister(timer._signal)\nsum(range(20_000_000))\nprint('alive')\n"
    ran = forked.rank.run("-c", script, tmp_path / "s")
    assert ran.stdout == "alive\n" and ran.returncode == 0, ran.returncode


def test_stacks_of_other_ranks_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("run-rank0.txt", "own"),
        ("run-rank1.txt", "stuck"),
        ("run-rank2.txt", ""),
        ("other-rank1.txt", "x"),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "run-rank3.txt").symlink_to(tmp_path / "other-rank1.txt")
    os.utime(tmp_path / "other-rank1.txt", (0, 0))
    found = hang.written_by_others(tmp_path, "run-rank", tmp_path / "run-rank0.txt", 60.0)
    assert found == {"run-rank1.txt": "stuck"}
    timer = StuckTimer(tmp_path / "run-rank5.txt", 1000.0)
    timer.start()
    timer.stop()
    assert not (tmp_path / "other-rank1.txt").exists(), "left by a process that was killed long ago"
