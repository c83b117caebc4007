"""Real trainings that end without a word, a real watcher and a real server: what they had closed is there, and how they
ended. A soak kills two hundred times.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rangewatch.crash.memory import anonymous_file
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.query.reader import Queries
from rangewatch_server.store.engine import open_database
from tests.agent.crash.job import Job, ended, run_of, wait_for, watchers
from tests.server.process import Server

pytestmark = pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux")
STEPS = 7  # as the trainer's END_STEP
INSIDE = "in forward, inside blocks.1.attn, after blocks.1.attn.q_proj and before blocks.1.attn.out_proj"

Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path, server: Server, request: pytest.FixtureRequest) -> Iterator[Start]:
    jobs: list[Job] = []

    def begin(how: str, run: str = "run", **changed: Any) -> Job:
        jobs.append(Job(server.url, tmp_path, how, run, **changed))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
    if request.node.originalname == "test_a_segmentation_fault_inside_a_collective":
        wait_for(lambda: not watchers(tmp_path))  # they go with the job; the other tests need not wait for it
    for pid in watchers(tmp_path):  # each stays for a second more
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def assert_steps_are_stored(db: Path, run: str, steps: list[int], rank: int = 0) -> None:
    """Each of them once, with every tensor of it and its series; and one that follows whole or not at all."""
    engines = open_database(f"sqlite:///{db}")
    with Queries(engines.reader, live_s=15).read() as reader:
        found = next(each for each in (reader.run(i) for i in reader.run_ids()) if each and each.name == run)
        calls = found.slice(RANGES, [rank], 0, 0, len(steps) + 1, ["call_count"]).columns["call_count"]
        assert calls.shape[1] >= len(steps) and (calls[:, : len(steps)] == 1).all(), calls
        assert np.unique(calls[:, len(steps) :]).size < 2
        number = found.names().series["wall_time_s"]
        counts = found.slice(SERIES_PART, [rank], 0, 0, len(steps), ["count"], np.array([number])).columns["count"]
        assert (counts == 1).all(), counts
    engines.dispose()


@pytest.mark.parametrize(
    ("kills", "within_s"),
    [
        (1, 0.3),
        pytest.param(5, 2.0, marks=pytest.mark.slow),
        pytest.param(200, 2.0, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_killed_at_any_moment_no_closed_step_is_missing(
    tmp_path: Path, server: Server, start: Start, kills: int, within_s: float
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    for number in range(kills):
        name = f"killed-{number}"
        job = start("none", name, STEP_S=str(chance.choice([0, 0.002, 0.02])))
        assert job.ranks[0].stdout is not None
        job.ranks[0].stdout.readline()  # the first step is closed, some tenths of a second after attach
        time.sleep(chance.uniform(0, within_s))
        job.ranks[0].kill()
        said = job.end()
        closed = list(range(said[-1] + 1)) if said else [0]
        run = ended(server, name, ("died",))
        # The line that says so is written after the step was closed: there may be one more, or that one's series.
        assert run["last_step"] - closed[-1] in (0, 1), (run["last_step"], closed[-1])
        assert_steps_are_stored(tmp_path / "server.db", name, closed)
        death = run["deaths"][0]
        assert death["signal"] == signal.SIGKILL and death["step"] - closed[-1] in (1, 2)
        assert run["death"].startswith(f"Rank 0 died of signal 9 (SIGKILL) in step {death['step']}, ")
        assert run["ranks"][0]["state"] == "died" and not run["hang"]
        assert death["last"] is None or death["last"]["fqn"].split(".")[0] in ("blocks", "head", "")


@pytest.mark.slow
def test_killed_before_the_watcher_had_a_chance(tmp_path: Path, server: Server, start: Start) -> None:
    job = start("SIGKILL", END_STEP="1", STEP_S="0")
    assert job.end() == [0]
    run = ended(server, "run", ("died",))
    assert run["last_step"] == 0 and run["deaths"][0]["step"] == 1


def test_a_segmentation_fault_inside_a_forward(tmp_path: Path, server: Server, start: Start) -> None:
    began_ns = time.time_ns()
    job = start("segfault")
    assert job.end() == list(range(STEPS))
    run = ended(server, "run", ("died",))
    death = run["deaths"][0]
    assert run["death"] == (
        f"Rank 0 died of signal 11 (SIGSEGV) in step {STEPS}, {INSIDE} (by the order of the step before); "
        f"Python was at trainer.py:{line_of('ctypes.string_at(0)')} in fail."
    )
    assert "Fatal Python error: Segmentation fault" in death["stack"] and "trainer.py" in death["stack"]
    assert death["module"] == "blocks.1.attn" and death["phase"] == "forward"
    assert began_ns < death["time_ns"] < time.time_ns()
    assert_steps_are_stored(tmp_path / "server.db", "run", list(range(STEPS)))


def line_of(text: str) -> int:
    lines = Path(__file__).with_name("trainer.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_segmentation_fault_inside_a_collective(tmp_path: Path, server: Server, start: Start) -> None:
    job = start("collective", ranks=2)
    assert job.end() == list(range(STEPS))
    run = ended(server, "run", ("died",))
    assert [rank["state"] for rank in run["ranks"]] == ["failed", "died"]
    assert run["ranks"][0]["failure"].startswith("RuntimeError: ") and "gloo" in run["ranks"][0]["failure"]
    death = run["deaths"][0]
    assert (death["rank"], death["signal"], death["step"]) == (1, signal.SIGSEGV, STEPS)
    (group,) = death["collectives"]
    assert group["op"] == "all_reduce" and group["enqueued"] - group["completed"] in (0, 1)
    if group["enqueued"] > group["completed"]:
        assert f"all_reduce {group['enqueued']} enqueued, {group['completed']} completed" in run["death"]
    assert_steps_are_stored(tmp_path / "server.db", "run", list(range(STEPS)), rank=1)


@pytest.mark.slow
def test_other_ends_are_told_apart(tmp_path: Path, server: Server, start: Start) -> None:
    hows = ("exit", "SIGTERM", "error", "detach", "unwatched")
    jobs = {
        how: start("exit" if how == "unwatched" else how, how, **{"RANGEWATCH_WATCHER": str(int(how != "unwatched"))})
        for how in hows
    }
    for how, job in jobs.items():
        assert job.end() == list(range(STEPS)), (how, job.errors)
    run = ended(server, "exit", ("died",))
    assert run["death"].startswith("Rank 0 ended with exit code 3 without a goodbye") and INSIDE in run["death"]
    assert run["deaths"][0]["exit_code"] == 3 and run["deaths"][0]["signal"] is None
    run = ended(server, "SIGTERM", ("terminated",))
    assert run["death"].startswith(
        "Rank 0 was ended by signal 15 (SIGTERM: a preemption or a stop of the job) in step 7"
    )
    run = ended(server, "error", ("failed",))
    assert run["ranks"][0]["failure"] == "ValueError: planted <b>error</b>" and run["death"] is None
    run = ended(server, "detach", ("finished",))
    assert run["death"] is None and run["last_step"] == STEPS - 1
    unwatched = run_of(server, "unwatched")
    assert unwatched is None or unwatched["deaths"] == []
    spools = [path.name for path in tmp_path.glob("rangewatch-*/*/*") if path.is_dir()]
    assert len(spools) == 1, "what nobody watched is left for `rangewatch replay`, and nothing else"
    wait_for(lambda: not watchers(tmp_path))  # they go with their jobs


@pytest.mark.slow
def test_the_server_away_at_the_death_and_back_later(tmp_path: Path, server: Server, start: Start) -> None:
    job = start("none", STEP_S="0.01")
    wait_for(lambda: (run := run_of(server, "run")) and run["last_step"] is not None)
    server.kill()
    job.ranks[0].kill()
    said = job.end()
    wait_for(lambda: watchers(tmp_path))
    again = Server(str(tmp_path / "server.db"), "--port", server.url.rpartition(":")[2])
    run = ended(again, "run", ("died",))
    assert run["last_step"] - said[-1] in (0, 1)
    assert_steps_are_stored(tmp_path / "server.db", "run", list(range(said[-1] + 1)))
    again.stop()


@pytest.mark.slow
def test_a_job_that_is_started_again_is_no_longer_dead(tmp_path: Path, server: Server, start: Start) -> None:
    start("SIGKILL").end()
    assert ended(server, "run", ("died",))["death"]
    start("detach").end()
    run = ended(server, "run", ("finished",))
    assert run["death"] is None and run["ranks"][0]["incarnation"] == 2


@pytest.mark.slow
def test_what_an_earlier_job_has_left_is_sent_too(tmp_path: Path, server: Server, start: Start) -> None:
    start("exit", "earlier", RANGEWATCH_WATCHER="0").end()
    (left,) = tmp_path.glob("rangewatch-*/*/*-r0-*")
    os.utime(left, (0, 0))  # nobody else is at it
    start("detach", "later").end()
    wait_for(lambda: not left.exists())
    assert run_of(server, "earlier") is not None


@pytest.mark.slow
def test_a_watcher_that_is_killed_has_a_successor(tmp_path: Path, server: Server, start: Start) -> None:
    job = start("none", STEP_S="0.01")
    wait_for(lambda: run_of(server, "run"))
    first = wait_for(lambda: len(found := watchers(tmp_path)) == 1 and found)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(watchers(tmp_path)) - set(first))
    job.ranks[0].kill()
    job.end()
    assert ended(server, "run", ("died",))["deaths"][0]["signal"] == signal.SIGKILL


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A memory control group of 1.5 GB, of version 1 or 2."""
    for top, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / top / f"rangewatch-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(1500 << 20))
            (group / "cgroup.procs").read_text()
        except OSError:
            group.rmdir()
            continue
        yield group
        while (group / "cgroup.procs").read_text():
            time.sleep(0.05)
        group.rmdir()
        return
    pytest.skip("no control group can be made here")


@pytest.mark.slow
def test_an_out_of_memory_kill(tmp_path: Path, server: Server, start: Start, control_group: Path) -> None:
    os.environ["TEST_CONTROL_GROUP"] = str(control_group)
    try:
        job = start("memory")
    finally:
        del os.environ["TEST_CONTROL_GROUP"]
    assert job.end() == list(range(STEPS)), job.errors
    run = ended(server, "run", ("died",))
    assert run["deaths"][0]["oom_kills"] == 1
    assert run["death"].startswith(
        "Rank 0 died of signal 9 (SIGKILL), and the out-of-memory killer of its control group struck once in the "
        f"minute before, in step {STEPS}, {INSIDE}"
    )
    assert_steps_are_stored(tmp_path / "server.db", "run", list(range(STEPS)))
