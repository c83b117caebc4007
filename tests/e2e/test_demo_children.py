"""`rangewatch demo` owns its processes: none is left behind, and one that fails fails the demo."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rangewatch.commands.demo import launch
from rangewatch.commands.demo.children import Child, ChildFailed, free_port
from rangewatch.commands.demo.progress import Progress
from tests import forked
from tests.server.process import Server

WAIT_S = 60.0
Demo = forked.Forked | subprocess.Popen[str]
StartDemo = Callable[..., Demo]


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    """Starts a demo of so many steps, with a server of its own unless it is given one; at the end it is killed."""
    started: list[Demo] = []

    def start(steps: int, *options: str) -> Demo:
        options = options or (f"--db={tmp_path / 'demo.db'}", f"--port={free_port()}")
        command = ["-m", "rangewatch", "demo", f"--steps={steps}", *options]
        demo = forked.server.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        demo.kill()
        demo.communicate()


def read_until(demo: Demo, words: str) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if words in line:
            return
    raise AssertionError(f"the demo ended without saying {words!r}")


def children_of(demo: Demo) -> dict[int, str]:
    """Process id -> command line of the demo's direct children, but those that are still copies of it."""
    listing = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    own = {args for pid, _, args in rows if int(pid) == demo.pid}
    return {int(pid): args for pid, ppid, args in rows if int(ppid) == demo.pid and args not in own}


def begun(demo: Demo, count: int) -> dict[int, str]:
    """So many children, as soon as it has them: before a rank has imported anything."""
    give_up_s = time.monotonic() + WAIT_S
    while len(found := children_of(demo)) < count and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert len(found) == count, found
    return found


def assert_gone(children: dict[int, str]) -> None:
    give_up_s = time.monotonic() + WAIT_S
    left = set(children)
    while left and time.monotonic() < give_up_s:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.05)
    assert not left


def interrupt(demo: Demo, number: signal.Signals, children: dict[int, str]) -> None:
    demo.send_signal(number)
    assert demo.wait(WAIT_S) == 130
    assert_gone(children)


def kill_a_rank(demo: Demo, children: dict[int, str]) -> None:
    ranks = [pid for pid, command in children.items() if "rangewatch.commands.demo.train" in command]
    os.kill(ranks[1], signal.SIGKILL)
    assert demo.wait(WAIT_S) == 1
    assert demo.stderr is not None
    assert "rangewatch demo: rank " in demo.stderr.read()
    assert_gone(children)


def test_a_child_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    script = "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.01; done"
    with Child("rank 0", ["bash", "-c", script], {}, tmp_path, read=True) as child:
        assert child.stdout.readline() == b"ready\n"
    assert child.stdout.read() == b"asked\n"


@pytest.mark.slow
def test_interrupted_start_leaves_no_process(start_demo: StartDemo) -> None:
    demo = start_demo(5000)
    interrupt(demo, signal.SIGTERM, begun(demo, 3))


def test_rank_that_dies_at_once_fails_the_demo(start_demo: StartDemo, served: Server) -> None:
    demo = start_demo(5000, f"--url={served.url}")
    kill_a_rank(demo, begun(demo, 2))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_leaves_no_process(start_demo: StartDemo, number: signal.Signals) -> None:
    demo = start_demo(5000)
    read_until(demo, "step ")
    interrupt(demo, number, begun(demo, 3))


@pytest.mark.slow
def test_rank_that_dies_fails_the_demo(start_demo: StartDemo) -> None:
    demo = start_demo(5000)
    read_until(demo, "step ")
    kill_a_rank(demo, children_of(demo))


@pytest.mark.slow
def test_dashboard_stays_up_until_interrupted(start_demo: StartDemo) -> None:
    demo = start_demo(1)
    read_until(demo, "press Ctrl-C to stop")
    children = children_of(demo)
    assert any(" serve " in command for command in children.values())
    demo.send_signal(signal.SIGINT)
    assert demo.wait(WAIT_S) == 0
    assert_gone(children)


def test_dashboard_that_is_killed_is_missed_unless_another_answers(tmp_path: Path, served: Server) -> None:
    script, said = "import sys; sys.exit('no such table')", io.StringIO()
    with Child("server", [sys.executable, "-S", "-c", script], {}, tmp_path) as server:
        with pytest.raises(ChildFailed, match=r"server ended with status 1\n  no such table"):
            launch._stay_up(server, f"http://127.0.0.1:{free_port()}", Progress(said))
        launch._stay_up(server, served.url, Progress(said))
    assert f"another answers at {served.url} and stays up" in said.getvalue()
