"""Ingest: values a second over real HTTP into SQLite with the pyramid kept, server and load on this machine's cores.

    python bench/ingest.py [--ranks 8] [--tensors 300] [--seconds 10]

The load is made beforehand; the clock runs from the first byte sent to the last acknowledgement. Prints bytes a value
stored, with the peers' figures for one metric beside it (trackio: 487k values a second, local).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import urllib3

from traffic import EVERY_STEP, Rank, catalogue

PEER_VALUES_PER_S = 487_000  # trackio 0.43, local, one process: the fastest tracker measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--steps", type=int, default=4_000, help="steps of each rank at the largest batch")
    arguments = parser.parse_args()
    results = []
    for batch_steps in (1, 10, 64):
        steps = min(arguments.steps, batch_steps * 100)
        results.append(measure(arguments.ranks, arguments.tensors, steps, batch_steps))
        print("{batch_steps:>3} steps a batch: {values_per_s:>12,.0f} values/s  {requests_per_s:>6.0f} requests/s  "
              "p50 {p50_ms:.1f} ms  p99 {p99_ms:.1f} ms  {bytes_per_value:.2f} bytes a value stored  "
              "{ratio:.0f} x trackio".format(**results[-1]))  # fmt: skip
    print(json.dumps(results))


def measure(ranks: int, tensors: int, steps: int, batch_steps: int) -> dict[str, float]:
    """One server, one load: every rank sends from a thread of its own, in order, as agents do."""
    known = catalogue(tensors)
    loads = []
    for number in range(ranks):
        rank = Rank("bench", number, ranks, known)
        loads.append([rank.opening(), *(rank.batch(batch_steps) for _ in range(steps // batch_steps))])
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "bench.db") as server:
        latencies: list[float] = []
        threads = [threading.Thread(target=send, args=(server.url, load, latencies)) for load in loads]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        server.stop()
        stored = sum(path.stat().st_size for path in Path(folder).iterdir())
    values = ranks * tensors * steps * len(EVERY_STEP)
    latencies.sort()
    return {
        "batch_steps": batch_steps, "values_per_s": values / took, "requests_per_s": len(latencies) / took,
        "p50_ms": latencies[len(latencies) // 2] * 1e3, "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "bytes_per_value": stored / values, "ratio": values / took / PEER_VALUES_PER_S,
    }  # fmt: skip


def send(url: str, bodies: list[bytes], latencies: list[float]) -> None:
    pool = urllib3.PoolManager(maxsize=1)
    for body in bodies:
        began = time.perf_counter()
        while (answer := pool.request("POST", f"{url}/api/v1/ingest", body=body, retries=False)).status == 429:
            time.sleep(0.05)
        if answer.status != 202:
            raise RuntimeError(f"{answer.status} {answer.data[:200]!r}")
        latencies.append(time.perf_counter() - began)


class Server:
    """A real `rangewatch serve`, on a free port unless one is given."""

    def __init__(self, db: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "rangewatch", "serve", "--port", str(port), "--db", str(db)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def stop(self) -> None:
        """Shut down as Ctrl-C does; the WAL is folded into the file."""
        self.process.terminate()
        self.process.wait(30)

    def __enter__(self) -> Server:
        pool = urllib3.PoolManager()
        for _ in range(200):
            try:
                if pool.request("GET", f"{self.url}/healthz", retries=False).status == 200:
                    return self
            except urllib3.exceptions.HTTPError:
                time.sleep(0.05)
        raise RuntimeError("the server did not start")

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


if __name__ == "__main__":
    main()
