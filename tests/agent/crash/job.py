"""Starts trainings that end badly, and reads what the server says of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tests import forked
from tests.forked.forker import TEMPLATE
from tests.server.process import Server

TRAINER = Path(__file__).with_name("trainer.py")


class Job:
    """The ranks of one run, each a process that prints the steps it has closed."""

    def __init__(self, url: str, spool: Path, how: str, run: str, ranks: int = 1, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        shared = os.environ | {
            "RANGEWATCH_WATCHER": "1", "RANGEWATCH_SPOOL_DIR": str(spool), "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        } | environment  # fmt: skip
        self.ranks = [
            forked.rank.start(
                TRAINER, how, url, run, stdout=PIPE, stderr=PIPE,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def end(self) -> list[int]:
        """Wait for it; the steps that its last rank has said are closed."""
        outputs = [rank.communicate(timeout=90) for rank in self.ranks]
        self.errors = outputs[-1][1].decode()
        *whole, _ = outputs[-1][0].decode().split("\n")
        return [int(line) for line in whole]

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()


def wait_for(condition: Callable[[], Any]) -> Any:
    while not (found := condition()):  # the test's own time limit ends it
        time.sleep(0.01)
    return found


def run_of(server: Server, name: str) -> dict[str, Any] | None:
    """The run of that name, as its own page gets it."""
    found = [each["id"] for each in server.get("/api/v1/runs")["runs"] if each["name"] == name]
    return dict(server.get(f"/api/v1/runs/{found[0]}")) if found else None


def ended(server: Server, name: str, states: tuple[str, ...]) -> dict[str, Any]:
    """The run when it is in one of these states."""
    return dict(wait_for(lambda: (run := run_of(server, name)) and run["state"] in states and run))


def watchers(spool: Path) -> list[int]:
    """Watchers of jobs whose spools are there, but for the process that starts one: that is its rank's child."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = _words(entry)
        if b"rangewatch.crash.watcher" in words and any(word.startswith(os.fsencode(spool)) for word in words):
            parent = _parent(entry)
            if parent != os.getpid() and os.fsencode(TEMPLATE) not in _words(Path(f"/proc/{parent}")):
                found.append(int(entry.name))
    return found


def _words(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
