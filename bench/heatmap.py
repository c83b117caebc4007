"""Time to serve a heatmap of 2,000 columns from 100,000 steps x 300 tensors x 8 ranks, cold and warm, over real HTTP.

    python bench/heatmap.py [--steps 100000] [--tensors 300] [--ranks 8] [--db FILE]

The database is built by the real writer (kept and reused with --db). "Cold" is the first request of a freshly started
server, "warm" one that finds the tiles decoded. The baseline in the same run is what a server without a
pyramid must do: read and merge every raw step of the range, measured on one rank and multiplied.
"""

from __future__ import annotations

import argparse
import json
import statistics as stats
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import urllib3

from ingest import Server
from rangewatch.wire import decode, encode
from rangewatch_server.queries import Queries
from rangewatch_server.store.engine import open_database
from rangewatch_server.store.writer import Busy, Writer
from traffic import Rank, catalogue

BATCH_STEPS = 64
REPEATS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--steps", 100_000), ("--tensors", 300), ("--ranks", 8)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--db", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = arguments.db or Path(folder) / "heatmap.db"
        if not db.exists():
            build(db, arguments.steps, arguments.tensors, arguments.ranks)
        raw_ms = raw_scan_ms(db, arguments.steps) * arguments.ranks
        results = [measure(db, what, query) for what, query in (
            ("layers, worst of all ranks", "layers?columns=2000&rows=1000"),
            ("layers, one rank", "layers?columns=2000&rows=1000&rank=3"),
            ("timeline, all ranks", "timeline?columns=2000"),
            ("layers, 1,000 steps", "layers?columns=2000&rows=1000&start=50000&stop=51000"),
        )]  # fmt: skip
    print(f"reading every raw step instead: {raw_ms:,.0f} ms")
    row = "{what:<28} cold {cold_ms:7.1f} ms  warm p50 {p50_ms:6.1f} ms  p95 {p95_ms:6.1f} ms  {bytes:>9,} bytes"
    for each in results:
        print(row.format(**each), f" {raw_ms / each['p50_ms']:6.0f} x faster than raw")
    print(json.dumps({"raw_ms": raw_ms, "results": results}))


def build(db: Path, steps: int, tensors: int, ranks: int) -> None:
    """Through the real writer, in order, as fast as it takes them."""
    engines = open_database(f"sqlite:///{db}")
    writer = Writer(engines)
    writer.start()
    known = catalogue(tensors)
    simulated = [Rank("bench", rank, ranks, known) for rank in range(ranks)]
    began = time.perf_counter()
    for rank in simulated:
        writer.submit(decode(rank.opening()), b"").result()
    waiting = []
    for done in range(0, steps, BATCH_STEPS):
        spike = (54_321, 123) if steps > 54_321 else None
        for rank in simulated:
            message = rank.record(min(BATCH_STEPS, steps - done), spike if rank.info.rank == 5 else None)
            waiting.append(submit(writer, message))
        if len(waiting) > 256:
            for future in waiting:
                future.result()
            waiting.clear()
            rate = done * ranks * tensors * 5 / (time.perf_counter() - began)
            sys.stderr.write(f"\rbuilding: {done / steps:4.0%}  {rate / 1e6:.1f} M values/s with the load's making ")
    writer.stop()
    engines.dispose()
    sys.stderr.write(f"\nbuilt in {time.perf_counter() - began:.0f} s, {db.stat().st_size / 1e6:.0f} MB\n")


def submit(writer: Writer, message: object) -> object:
    while True:
        try:
            return writer.submit(message, encode(message))
        except Busy:
            time.sleep(0.01)


def raw_scan_ms(db: Path, steps: int) -> float:
    """One rank's raw steps, read and merged to 2,000 columns with no pyramid."""
    engines = open_database(f"sqlite:///{db}")
    with Queries(engines.reader, 15).read() as reader:
        run = reader.run(1)
        began = time.perf_counter()
        block = run.slice("ranges", [0], 0, 0, steps, ["call_count", "amax", "nan_count", "inf_count"])
        np.maximum.reduceat(block.columns["amax"], np.arange(0, steps, max(1, steps // 2000)), axis=1)
        took = time.perf_counter() - began
    engines.dispose()
    return took * 1e3


def measure(db: Path, what: str, query: str) -> dict[str, object]:
    with Server(db) as server:
        pool = urllib3.PoolManager()
        times = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            answer = pool.request("GET", f"{server.url}/api/v1/runs/1/figures/{query}")
            times.append((time.perf_counter() - began) * 1e3)
            assert answer.status == 200, answer.data[:200]
    warm = sorted(times[1:])
    return {
        "what": what,
        "cold_ms": times[0],
        "p50_ms": stats.median(warm),
        "p95_ms": warm[int(len(warm) * 0.95)],
        "bytes": len(answer.data),
    }


if __name__ == "__main__":
    main()
