"""What collective timing costs: a collective of each timing source, and the step of two gloo ranks with DDP.

    python bench/collectives.py [--rounds 10] [--steps 20]

Two ranks train one model without Rangewatch's collector and two more with it, on the timing source that this torch
allows; once with DDP's own buckets of 25 MB and once with buckets of 1 MB, some twenty collectives a step. In each
round all pairs run a window of steps, in random order and never together. A ratio is that of the median steps of one
round; the table has the median of the rounds and the range from the 10th to the 90th percentile. The seconds of a
collective are those of an all_reduce of 4 KB in a group of one rank, where nobody is waited for.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.collectors.collectives import collector as collectives
from rangewatch.collectors.collectives.flight_recorder import FlightRecorder
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo

SOURCES = ("plain", "hooks", "wrapped")
BUCKETS_MB = (25, 1)
OPS = 500

Lane = tuple[str, int]
"""Timing source, and the size of DDP's buckets in MB."""


def main() -> int:
    """Print the figures, and all of them as a line of JSON at the end."""
    options = parse_options()
    lanes = {pair.lane: pair for pair in started(options)}
    steps: dict[Lane, list[float]] = {lane: [] for lane in lanes}
    ops: dict[Lane, list[float]] = {lane: [] for lane in lanes}
    order = random.Random(0)
    for _ in range(options.rounds):
        for lane in order.sample(list(lanes), len(lanes)):
            steps[lane].append(lanes[lane].ask("steps", options.steps))
            ops[lane].append(lanes[lane].ask("ops", OPS))
    dump_s = lanes["plain", BUCKETS_MB[0]].ask("dump", 2000)
    for pair in lanes.values():
        pair.end()
    report(options, steps, ops, dump_s)
    return 0


def started(options: argparse.Namespace) -> list[Pair]:
    """A pair for each timing source that this torch has and each size of buckets."""
    pairs = []
    for lane in ((source, bucket_mb) for source in SOURCES for bucket_mb in BUCKETS_MB):
        pair = Pair(lane, options)
        if pair.source == lane[0]:
            pairs.append(pair)
        else:
            pair.end()
    return pairs


class Pair:
    """Two ranks that run what they are asked to."""

    def __init__(self, lane: Lane, options: argparse.Namespace) -> None:
        self.lane = lane
        spawn = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pipes = [spawn.Pipe() for _ in range(2)]
        self._pipes = [ours for ours, _ in pipes]
        arguments = [(rank, lane, port, options, theirs) for rank, (_, theirs) in enumerate(pipes)]
        self._ranks = [spawn.Process(target=run_rank, args=each) for each in arguments]
        for rank in self._ranks:
            rank.start()
        for _, theirs in pipes:
            theirs.close()  # a rank that dies is an EOFError here, and not a wait for ever
        self.source, _ = [pipe.recv() for pipe in self._pipes]

    def ask(self, what: str, count: int) -> float:
        """Rank 0's seconds."""
        for pipe in self._pipes:
            pipe.send((what, count))
        first, _ = [pipe.recv() for pipe in self._pipes]
        return first

    def end(self) -> None:
        """Wait until both have ended."""
        for pipe in self._pipes:
            pipe.send(("end", 0))
        for rank in self._ranks:
            rank.join()


def run_rank(rank: int, lane: Lane, port: int, options: argparse.Namespace, pipe: Connection) -> None:
    """One rank, until it is told to end."""
    name, bucket_mb = lane
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    training = Training(rank, options.width, bucket_mb)
    stop = threading.Event()
    if name == "plain":
        pipe.send("plain")
    else:
        pipe.send(start_collector(rank, name, training, stop))
    training.steps(3)
    work = {"steps": training.steps, "ops": training.ops, "dump": training.dump}
    while (asked := pipe.recv())[0] != "end":
        pipe.send(work[asked[0]](asked[1]))
    stop.set()
    dist.barrier()
    dist.destroy_process_group()


def start_collector(rank: int, source: str, training: Training, stop: threading.Event) -> str:
    """The collector and a thread that polls once a second, as in the agent; the timing source it uses."""
    if source == "wrapped":
        vars(collectives)["are_supported"] = lambda: False  # as on a torch before 2.14
    collector = collectives.Collectives(None, RankInfo("bench", rank, 2, rank, "host", "0", 0), hang_s=1000)  # type: ignore[arg-type]
    collector.open_step = lambda: training.step
    collector.start(Unsent())

    def look() -> None:
        while not stop.wait(1.0):
            collector.collect(training.step)
        collector.stop()

    threading.Thread(target=look, daemon=True).start()
    return collector.timing_source


class Unsent(Events):
    """Events that go nowhere."""

    def __init__(self) -> None:
        pass

    def add(self, *event: Any, **more: Any) -> None:
        """Nobody asks for it."""


class Training:
    """A model of 40 parameters, some 20 MB, on one thread a rank."""

    def __init__(self, rank: int, width: int, bucket_mb: int) -> None:
        torch.manual_seed(0)
        self._model = DistributedDataParallel(
            nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(20)]),
            bucket_cap_mb=bucket_mb,
        )
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01)
        self._data = torch.randn(128, width)
        self._alone = [dist.new_group([each]) for each in range(2)][rank]
        self.step = 0

    def steps(self, count: int) -> float:
        """Median seconds of a step."""
        times_s = []
        for _ in range(count):
            began_s = time.perf_counter()
            self._model(self._data).pow(2).mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self.step += 1
            times_s.append(time.perf_counter() - began_s)
        return statistics.median(times_s)

    def ops(self, count: int) -> float:
        """Median seconds of a collective in which nobody else takes part."""
        values, times_s = torch.ones(1024), []
        for _ in range(count):
            began_s = time.perf_counter()
            dist.all_reduce(values, group=self._alone)
            times_s.append(time.perf_counter() - began_s)
        return statistics.median(times_s)

    def dump(self, count: int) -> float:
        """Seconds of one reading of the flight recorder with a full ring, in which the GIL is held."""
        self.ops(count)
        began_s = time.perf_counter()
        FlightRecorder().read()
        return time.perf_counter() - began_s


def report(
    options: argparse.Namespace, steps: dict[Lane, list[float]], ops: dict[Lane, list[float]], dump_s: float
) -> None:
    """The table."""
    print(f"torch {torch.__version__}, gloo, {options.rounds} rounds of {options.steps} steps")
    print(f"{'buckets':<10}{'source':<10}{'step, ms':>10}{'ratio to plain':>28}{'all_reduce, us':>18}")
    rows: dict[str, Any] = {}
    for lane, times_s in sorted(steps.items(), key=lambda item: (-item[0][1], item[0][0])):
        source, bucket_mb = lane
        ratios = sorted(mine / plain for mine, plain in zip(times_s, steps["plain", bucket_mb], strict=True))
        low, middle, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.1, 0.5, 0.9))
        step_ms, op_us = 1e3 * statistics.median(times_s), 1e6 * statistics.median(ops[lane])
        rows[f"{source}, {bucket_mb} MB"] = {
            "step_ms": step_ms,
            "ratio": middle,
            "low": low,
            "high": high,
            "all_reduce_us": op_us,
        }
        ratio = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"{f'{bucket_mb} MB':<10}{source:<10}{step_ms:>10.1f}{ratio:>28}{op_us:>18.1f}")
    print(f"one reading of the flight recorder's ring: {1e3 * dump_s:.1f} ms, on NCCL every 5 s; never on gloo alone")
    print(json.dumps({"benchmark": "collectives", "torch": torch.__version__, "sources": rows, "dump_s": dump_s}))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of all variants")
    parser.add_argument("--steps", type=int, default=20, help="steps of a window")
    parser.add_argument("--width", type=int, default=512, help="width of the model's layers")
    options = parser.parse_args()
    if min(options.rounds, options.steps, options.width) < 1:
        parser.error("rounds, steps and width are at least 1")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
