"""The spool alone: what a batch costs on its way through it, and a server that is away for hours.

    python bench/spool.py [--batches 40000] [--folder DIR] [--quick]

Predicted: microseconds a batch while the server answers, since it is one write into the page cache; with the server
away 256 MiB at most on disk, some ten MiB of memory however long, and then the oldest batches dropped and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.delivery.spool.log import Log
from rangewatch.delivery.spool.record import Encoded
from rangewatch.recording.events import Drops
from rangewatch.wire.records import Batch, RangeRows, RankInfo, SeriesRows

TENSORS, STEPS = 600, 8
INFO = RankInfo("spool", 0, 1, 0, "host", "incarnation", 1)
SIZES = (2_000, 20_000, 200_000, 2_000_000)


def main() -> None:
    """Print both, and a last line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40_000)
    parser.add_argument("--folder", type=Path, help="a folder of the disk to measure (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="only whether it runs")
    options = parser.parse_args()
    batches, times, spool_bytes = (600, 20, 1 << 20) if options.quick else (options.batches, 1_000, limits.SPOOL_BYTES)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        costs = [through(Path(folder), size, times) for size in SIZES]
        hours = away(Path(folder), batches, spool_bytes)
    print(json.dumps({"costs": costs, "away": hours}))


def through(folder: Path, size: int, times: int) -> dict[str, Any]:
    """Seconds to append a batch of `size` bytes, and to free it."""
    (own := folder / str(size)).mkdir()
    log = Log(own, limits.SPOOL_BYTES, Drops())
    batch = Encoded(os.urandom(size), TENSORS, "digest")
    taken = []
    for sequence in range(times):
        began_s = time.perf_counter()
        log.append(batch._replace(sequence=sequence), lambda: b"opening")
        appended_s = time.perf_counter()
        log.remove_first()
        taken.append((appended_s - began_s, time.perf_counter() - appended_s))
    log.close()
    append_s, free_s = (statistics.median(each) for each in zip(*taken, strict=True))
    print(f"{size:>9} bytes: {append_s * 1e6:6.0f} us to append, {free_s * 1e6:4.0f} us to free")
    return {"bytes": size, "append_s": append_s, "free_s": free_s}


def away(folder: Path, batches: int, spool_bytes: int) -> dict[str, Any]:
    """What becomes of disk, memory and the agent's thread while nothing is acknowledged."""
    lost = Drops()
    (own := folder / "away").mkdir()
    log = Log(own, spool_bytes, lost)
    random, before, longest_s, total_s = np.random.default_rng(0), rss_mib(), 0.0, 0.0
    for sequence in range(batches):
        encoded = Encoded(wire.encode(batch_of(sequence, random)), TENSORS, "d" * 32, sequence)
        began_s = time.perf_counter()
        log.append(encoded, lambda: b"opening")
        taken_s = time.perf_counter() - began_s
        longest_s, total_s = max(longest_s, taken_s), total_s + taken_s
    found = {
        "steps": batches * STEPS, "disk_bytes": sum(each.stat().st_size for each in own.iterdir()),
        "rss_growth_mib": rss_mib() - before, "longest_s": longest_s, "mean_s": total_s / batches, "lost": lost.counts,
        "records": len(log),
    }  # fmt: skip
    log.close()
    print(
        f"{found['steps']:,} steps with the server away: {found['disk_bytes'] / 2**20:.0f} MiB on disk, "
        f"{found['rss_growth_mib']:.0f} MiB of memory, lost: {found['lost'] or 'nothing'}; "
        f"{found['mean_s'] * 1e3:.2f} ms a batch, {longest_s:.2f} s the longest"
    )
    return found


def batch_of(sequence: int, random: np.random.Generator) -> Batch:
    """A busy run's: the magnitudes do not repeat, so they pack badly."""
    steps = np.arange(sequence * STEPS, (sequence + 1) * STEPS)
    shape = TENSORS, STEPS
    columns = {
        "call_count": np.ones(shape), "numel": np.full(shape, 4096.0),
        "amax": random.random(shape, np.float32).astype(np.float64),
    }  # fmt: skip
    rows = RangeRows(steps, np.arange(TENSORS), columns)
    loss = SeriesRows("loss", steps, random.random(STEPS))
    return Batch(INFO.run, INFO.rank, INFO.incarnation, sequence, "d" * 32, rows, (loss,), (), sequence)


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


if __name__ == "__main__":
    main()
