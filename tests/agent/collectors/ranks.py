"""Real gloo ranks, each a process of its own, that return what they saw."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.core.guard import Guard
from rangewatch.recording.events import OpenStep
from rangewatch.wire.records import RankInfo, Samples
from tests import forked
from tests.agent.doubles import EventList

Rank = Callable[[int, Path], Any]


def run_ranks(body: Rank, count: int, folder: Path) -> list[Any]:
    """What `body(rank, folder)` returned on each of `count` ranks. An exception in any is one here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_all = (count, port, folder, body.__module__, body.__name__)
    ranks = [forked.rank.start("-c", RANK, rank, *of_all, stderr=PIPE, text=True) for rank in range(count)]
    errors = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * count, "".join(errors)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(count)]


RANK = "import sys; from tests.agent.collectors.ranks import run_rank; run_rank(*sys.argv[1:])"


def run_rank(number: str, count: str, port: str, path: str, module: str, name: str) -> None:
    """In the rank's process: run the body of this name and leave what it returned in the folder."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    Guard.fatal = True
    body, rank, folder = getattr(importlib.import_module(module), name), int(number), Path(path)
    dist.init_process_group("gloo", rank=rank, world_size=int(count))
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(body(rank, folder)))
    dist.barrier()
    dist.destroy_process_group()


class Watched:
    """A collector with what it told and gave; `step` is the open one."""

    def __init__(self, rank: int, count: int, *, hang_s: float = 1000.0) -> None:
        self.collector = Collectives(None, RankInfo("run", rank, count, rank, "host", "0", 0), hang_s=hang_s)
        self._open_step = OpenStep(0)
        self.collector.watch(nn.Module(), self._open_step, None)
        self._told = EventList()
        self.events = self._told.events
        self.given: list[Samples] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def step(self) -> int:
        """The open one."""
        return self._open_step.number

    @step.setter
    def step(self, number: int) -> None:
        self._open_step.number = number

    def start(self) -> None:
        """Start the collector; `collect` is for the caller to call."""
        self.collector.start(self._told)

    def collect(self) -> None:
        """What is new."""
        self.given += self.collector.collect(self.step)

    def look_often(self) -> None:
        """Collect ten times a second, on a thread, as the agent does once a second."""
        self._thread.start()

    def stop(self) -> None:
        """The end of thread and collector."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)
        self.collector.stop()

    def rows(self) -> list[dict[str, Any]]:
        """All rows given so far, with names instead of numbers."""
        return [row for samples in self.given for row in rows_of(samples)]

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            self.collect()


def rows_of(samples: Samples) -> list[dict[str, Any]]:
    """The rows of one `Samples`."""
    about, columns = samples.about, samples.columns
    rows = []
    for place, time_ns in enumerate(samples.times_ns):
        row = {name: float(values[place]) for name, values in columns.items()}
        row |= {name: about[f"{name}s"][int(columns[name][place])] for name in ("group", "op", "dtype")}
        rows.append({**row, "enqueued_ns": int(time_ns)})
    return rows
