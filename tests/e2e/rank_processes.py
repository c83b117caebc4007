"""Ranks of one job, each a process: started together, and waited for."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import PIPE

from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.server.process import Server


def train(worker: Path, ranks: int, url: str, *runs: str) -> None:
    """Run `worker URL RUN...` on so many ranks, without a process group where it is one; all must end well."""
    usual = os.environ | {"OMP_NUM_THREADS": "1", "RANGEWATCH_COLLECT": "environment"}
    if ranks > 1:
        usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    processes = []
    try:
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            processes.append(forked.rank.start(worker, url, *runs, env=usual | own, stderr=PIPE, text=True))
        for process in processes:
            _, errors = process.communicate()  # the test's own time limit ends it
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


def number_of(server: Server, run: str) -> int:
    """Of the run of this name."""
    return next(int(each["id"]) for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)
