"""`rangewatch demo` owns its processes: none is left behind, and one that fails fails the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rangewatch.demo.children import free_port

WAIT_S = 60.0
Demo = subprocess.Popen[str]
StartDemo = Callable[[int], Demo]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Its path is in the server's command line, which tells the test's own server from any other."""
    return tmp_path / "demo.db"


@pytest.fixture
def start_demo(database: Path) -> Iterator[StartDemo]:
    """Starts a demo of so many steps; whatever is still there at the end is killed."""
    started: list[Demo] = []

    def start(steps: int) -> Demo:
        options = [f"--db={database}", f"--port={free_port()}", f"--steps={steps}"]
        command = [sys.executable, "-m", "rangewatch", "demo", *options]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    """Process id -> command line of the demo's direct children."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return {int(pid): args for pid, ppid, args in rows if int(ppid) == demo.pid}


def assert_gone(children: dict[int, str]) -> None:
    give_up_s = time.monotonic() + 5
    left = set(children)
    while left and time.monotonic() < give_up_s:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_leaves_no_process(start_demo: StartDemo, number: signal.Signals) -> None:
    demo = start_demo(5000)
    read_until(demo, "step ")
    children = children_of(demo)
    assert len(children) == 3
    demo.send_signal(number)
    assert demo.wait(WAIT_S) == 130
    assert_gone(children)


def test_dashboard_stays_up_until_interrupted(start_demo: StartDemo) -> None:
    demo = start_demo(1)
    read_until(demo, "press Ctrl-C to stop")
    children = children_of(demo)
    assert any(" serve " in command for command in children.values())
    demo.send_signal(signal.SIGINT)
    assert demo.wait(WAIT_S) == 0
    assert_gone(children)


def test_rank_that_dies_fails_the_demo(start_demo: StartDemo) -> None:
    demo = start_demo(5000)
    read_until(demo, "step ")
    children = children_of(demo)
    ranks = [pid for pid, command in children.items() if "rangewatch.demo.train" in command]
    os.kill(ranks[1], signal.SIGKILL)
    assert demo.wait(WAIT_S) == 1
    assert demo.stderr is not None
    assert "rangewatch demo: rank " in demo.stderr.read()
    assert_gone(children)
