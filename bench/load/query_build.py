"""Long runs for `query.py`, through the real writer in order, as fast as it takes them; files, kept when asked to."""

from __future__ import annotations

import sys
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from load.traffic import Rank, values_a_step
from rangewatch.wire import decode, encode
from rangewatch_server.ingest.writer import Busy, Writer
from rangewatch_server.store.engine import open_database

BATCH_STEPS = 64  # what an agent ships at once when steps are fast
IN_FLIGHT = 256  # batches handed to the writer and not yet committed: some 20 MB


def kept(folder: Path, steps: int, tensors: int, ranks: int) -> Path:
    """The database of such a run, made when it is not there. A build that was cut short leaves nothing to mistake."""
    path = folder / f"{steps}x{tensors}x{ranks}.db"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        for left in folder.glob(f"{unfinished.name}*"):
            left.unlink()
        build(unfinished, steps, tensors, ranks)
        unfinished.rename(path)
    return path


def build(path: Path, steps: int, tensors: int, ranks: int) -> None:
    """One run, healthy but for one Inf a little after its half, on its last rank."""
    engines = open_database(f"sqlite:///{path}")
    writer = Writer(engines)
    writer.start()
    simulated = [Rank("bench", rank, ranks, tensors) for rank in range(ranks)]
    began_s = time.perf_counter()
    waiting = deque(writer.submit(decode(body), body) for body in (rank.opening() for rank in simulated))
    for done in range(0, steps, BATCH_STEPS):
        for rank in simulated:
            spike = (steps * 5 // 9, tensors // 2) if rank is simulated[-1] else None
            waiting.append(submit(writer, rank.record(min(BATCH_STEPS, steps - done), spike)))
        while len(waiting) > IN_FLIGHT:
            waiting.popleft().result()
        show(done + BATCH_STEPS, steps, ranks * tensors, time.perf_counter() - began_s)
    for future in waiting:
        future.result()
    while writer.memory.backlog or writer.memory.unmerged:  # tiles that had to wait
        time.sleep(0.05)
    writer.stop()
    engines.dispose()
    took_s, size = time.perf_counter() - began_s, path.stat().st_size
    values = steps * ranks * tensors * values_a_step()
    sys.stderr.write(
        f"\nbuilt {path.stem} in {took_s:.0f} s: {size / 1e6:,.0f} MB, {size / values:.2f} bytes a value\n"
    )


def submit(writer: Writer, message: Any) -> Future[Any]:
    body = encode(message)  # what is not in tiles at the end is kept and read as this
    while True:
        try:
            return writer.submit(message, body)
        except Busy:
            time.sleep(0.01)


def show(done: int, steps: int, per_step: int, took_s: float) -> None:
    if done // BATCH_STEPS % 50 == 0:
        rate = done * per_step * values_a_step() / took_s
        sys.stderr.write(f"\rbuilding {steps:,} steps: {done / steps:4.0%}  {rate / 1e6:.1f} M values/s ")
