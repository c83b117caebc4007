"""Two DistributedDataParallel ranks are killed with SIGKILL: the last lines of their stderr are there afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from rangewatch.crash.memory import anonymous_file
from tests.agent.commands.command import typed
from tests.agent.crash.job import Job, ended, wait_for, watchers
from tests.server.process import Server

pytestmark = [pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux"), pytest.mark.slow]
RANKS = Path(__file__).with_name("stderr_ranks.py")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Popen[bytes]]]:
    started: list[Popen[bytes]] = []
    yield started
    for rank in started:
        if rank.poll() is None:
            rank.kill()
            rank.communicate()
    for pid in watchers(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def start(server: Server, tmp_path: Path, rank: int, port: int, stderr: Any) -> Popen[bytes]:
    environment = os.environ | {
        "RANGEWATCH_WATCHER": "1", "RANGEWATCH_SPOOL_DIR": str(tmp_path), "WORLD_SIZE": "2", "RANK": str(rank),
        "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    # No fork of the tests' own: what stderr is, a file or a pipe, is what is tested.
    return subprocess.Popen(
        [sys.executable, str(RANKS), server.url, "run"], stdout=PIPE, stderr=stderr, env=environment
    )


def test_the_last_lines_of_killed_ranks_are_there(tmp_path: Path, server: Server, ranks: list[Popen[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with (tmp_path / "rank0.txt").open("wb") as file:
        ranks.append(start(server, tmp_path, 0, port, file))
    ranks.append(start(server, tmp_path, 1, port, PIPE))
    for _ in range(10):
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline()
    # Without the watcher nothing is lost of what they write, and another one is there a moment later.
    for pid in wait_for(lambda: watchers(tmp_path)):
        os.kill(pid, signal.SIGKILL)
    for _ in range(10):
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline()
    wait_for(lambda: watchers(tmp_path))
    for rank in ranks:
        rank.kill()
    outputs = [rank.communicate()[1] for rank in ranks]
    wait_for(lambda: [each["state"] for each in ended(server, "run", ("died",))["ranks"]] == ["died", "died"])
    run = ended(server, "run", ("died",))

    of_file, of_pipe = (server.get(f"/api/v1/runs/{run['id']}/stderr?rank={rank}") for rank in (0, 1))
    written = (tmp_path / "rank0.txt").read_text().splitlines()
    hidden = [line.partition("hunter")[0] + "***" if "hunter" in line else line for line in written]
    assert of_file["lines"] == hidden[-len(of_file["lines"]) :] and "from C of rank 0" in of_file["lines"]
    assert (of_file["source"], of_file["path"]) == ("file", str(tmp_path / "rank0.txt"))
    seen = [line for line in outputs[1].decode().splitlines() if line.startswith("rank 1")]
    steps = [int(line.split()[4].rstrip(",")) for line in seen]
    assert steps == list(range(len(steps))) and len(steps) >= 20, "nothing of it is lost, with a watcher or without"
    # Each text is copied before it is written: the killed process may have come to the one and not to the other.
    shown = [line for line in of_pipe["lines"] if line.startswith("rank 1")]
    assert len(shown) - len(seen) in (0, 1) and shown[0] == "rank 1 at step 0, password=***"
    assert of_pipe["source"] == "python" and "stderr is a pipe" in of_pipe["note"]
    assert not any("from C" in line for line in of_pipe["lines"])

    status, out, err = typed("logs", "run", "--rank", "1", "--url", server.url)
    assert status == 0 and out.splitlines() == of_pipe["lines"] and of_pipe["note"] in err


def test_the_traceback_of_an_uncaught_exception_is_in_them(tmp_path: Path, server: Server) -> None:
    job = Job(server.url, tmp_path, "error", "run", RANGEWATCH_STDERR_TAIL="1")
    job.end()
    run = ended(server, "run", ("failed",))
    tail = server.get(f"/api/v1/runs/{run['id']}/stderr")
    assert tail["lines"][-1] == "ValueError: planted <b>error</b>"
    assert "Traceback (most recent call last):" in tail["lines"] and tail["lines"] == job.errors.splitlines()
