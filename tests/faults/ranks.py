"""Faults of several ranks: `ranks.py URL SEED NAME...` is one rank, and trains them one after another."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.faults import cases
from tests.faults.fault import Fault, Job
from tests.faults.healthy import SCRIPTS, Script

Start = Callable[..., Any]


def run_name(fault: Fault | Script, seed: int) -> str:
    return f"{fault.name} {seed}"


def launch(url: str, seed: int, faults: Sequence[Fault | Script], start: Start = subprocess.Popen) -> None:
    """All of them, which want equally many ranks. `start` is called as `subprocess.Popen` is, without the interpreter
    where it needs none. Raises `AssertionError` with what a rank said that failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (ranks,) = {each.ranks for each in faults}
    usual = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    usual |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "RANGEWATCH_WATCHER": "0"}
    command = [__file__, url, str(seed), *(each.name for each in faults)]
    if start is subprocess.Popen:
        command = [sys.executable, *command]
    started = [
        start(command, env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(ranks)
    ]
    for each in started:
        _, errors = each.communicate()
        assert each.returncode == 0 or any(isinstance(fault, Fault) and fault.ends for fault in faults), errors.decode()


def main(url: str, seed: str, *names: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    by_name = cases.BY_NAME | {each.name: each for each in SCRIPTS}
    for name in names:
        fault = by_name[name]
        torch.manual_seed(int(seed))
        fault.train(Job(url, run_name(fault, int(seed)), int(seed), dist.get_rank(), dist.get_world_size()))
    dist.barrier()  # the first rank holds the store


if __name__ == "__main__":
    main(*sys.argv[1:])
