"""Ingest: values a second over real HTTP into SQLite with the pyramid kept, server and load on this machine's cores.

    python bench/ingest.py [--db postgresql://postgres@127.0.0.1/postgres] [--no-peers] [--scale 1]

The load is made beforehand (agents make theirs on other machines); the clock runs from the first byte sent to the last
acknowledgement. Bytes a value are the files' after the server has stopped, so with everything committed and folded.
The same statistics then go into trackio, MLflow and TensorBoard (`peers.py`). The last line is JSON.

Predicted before measuring: on a CPU's five statistics 15 M values/s at 64 steps a batch, 5 M at 10, 0.8 M at 1, 0.6
bytes a value; on an accelerator's ten 12 M at 64, and 1.5 bytes, since half of them are noise. p99 0.2 s.
TensorBoard 50 k, MLflow 15 k and trackio 600 k values/s with both cores.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import numpy as np
import urllib3

import peers
from load.traffic import FULL_EVERY, Rank, values_a_step
from servers.process import Database, Server, fresh_database

BATCHES = {1: 600, 10: 400, 64: 200}  # steps a batch: batches of each rank; each case takes some seconds to send
AGENTS = {"CPU agents, 5 statistics": FULL_EVERY, "CUDA agents, 10 statistics": 1}
ROW = (
    "{what:<28} {batch_steps:>3} steps a batch: {values_per_s:>12,.0f} values/s  {requests_per_s:>6,.0f} requests/s  "
    "p50 {p50_ms:6.1f} ms  p99 {p99_ms:6.1f} ms  {bytes_per_value:5.2f} bytes a value stored"
)


def main() -> None:
    options = parse_options()
    results: list[dict[str, Any]] = []
    for what, full_every in list(AGENTS.items())[: 1 if options.quick else None]:
        for batch_steps, batches in list(BATCHES.items())[-1 if options.quick else 0 :]:
            count = max(2, round(batches * options.scale))
            with fresh_database(options.db) as database:
                found = measure(database, options.ranks, options.tensors, batch_steps, count, full_every)
            results.append({"what": what, "batch_steps": batch_steps} | found)
            print(ROW.format(**results[-1]), flush=True)
    beside = [] if options.no_peers else peers.measure_all(options.tensors, options.peer_seconds)
    like_for_like = results[min(len(BATCHES), len(results)) - 1]  # the peers too get five statistics
    for peer in beside:
        print(peers.row(peer, like_for_like["values_per_s"], like_for_like["bytes_per_value"]))
    print(json.dumps({"benchmark": "ingest", "options": vars(options), "results": results, "peers": beside}))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default="", help="PostgreSQL to make a database on; default: a SQLite file")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of batches")
    parser.add_argument("--peer-seconds", type=float, default=10.0, help="that each peer logs for")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two ranks, few batches, no peers: whether it runs at all")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.tensors, options.scale, options.no_peers = 2, 30, 0.01, True
    return options


def measure(
    database: Database, ranks: int, tensors: int, batch_steps: int, batches: int, full_every: int
) -> dict[str, float]:
    """One server, one load: every rank sends from a thread of its own, in order, as agents do."""
    loads = []
    for number in range(ranks):
        rank = Rank("bench", number, ranks, tensors, full_every)
        loads.append([rank.opening(), *(rank.batch(batch_steps) for _ in range(batches))])
    latencies_s: list[float] = []
    with Server(database.db) as server:
        empty_bytes = 0 if database.is_sqlite else database.nbytes()
        threads = [threading.Thread(target=send, args=(server.url, load, latencies_s)) for load in loads]
        began_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - began_s
    if len(latencies_s) != ranks * (batches + 1):
        raise RuntimeError("not every message was acknowledged")
    values = ranks * tensors * batch_steps * batches * values_a_step(full_every)
    p50_s, p99_s = np.percentile(latencies_s, (50, 99))
    return {
        "values_per_s": values / took_s, "requests_per_s": len(latencies_s) / took_s,
        "p50_ms": p50_s * 1e3, "p99_ms": p99_s * 1e3, "bytes_per_value": (database.nbytes() - empty_bytes) / values,
    }  # fmt: skip


def send(url: str, bodies: list[bytes], latencies_s: list[float]) -> None:
    """All bodies over one connection; seconds from each one's first attempt to its acknowledgement."""
    pool = urllib3.PoolManager(maxsize=1)
    for body in bodies:
        began_s = time.perf_counter()
        while (answer := pool.request("POST", f"{url}/api/v1/ingest", body=body, retries=False)).status == 429:
            time.sleep(float(answer.headers.get("Retry-After", 1)))
        if answer.status != 202:
            raise RuntimeError(f"{answer.status} {answer.data[:200]!r}")
        latencies_s.append(time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
