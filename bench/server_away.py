"""Step time of a training while its server is away, or in any other trouble: the ratio should be 1.

    python bench/server_away.py [--steps 400] [--trouble-steps 150] [--rounds 5] [--quick]

First one real training of two gloo ranks; the server is killed with SIGKILL and started again every 3 s, so that both
conditions alternate within one run and drift of the machine cancels. Steps around each change are left out.

Then each trouble against no agent at all, in rounds (`servers/troubles.py`): a server that is there, away, sends a byte
a second, answers 500, 429, 413 or garbage, or closes at random. What is predicted: the ratio of "there" is what the
agent costs this small model, and every other is the same within the range of its rounds; memory grows in the first
window alone; nothing is missing afterwards but what was refused for good (413).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from servers import troubles
from servers.process import Server

BLOCK_S = 3.0
SETTLE_S = 0.5  # after a change: what was kept meanwhile is sent at once
WARM_UP_STEPS = 20
BOOTSTRAPS = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--trouble-steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the troubles alone, at their smallest: do they run?")
    options = parser.parse_args()
    killed = {} if options.quick else alternate(options.steps)
    rows = troubles.measure(*((12, 1) if options.quick else (options.trouble_steps, options.rounds)))
    troubles.show(rows)
    print(json.dumps({**killed, "troubles": rows}))


def alternate(steps: int) -> dict[str, float]:
    """The ratio of a step while the server is killed to one while it is there."""
    with tempfile.TemporaryDirectory() as folder:
        times = measure(Path(folder) / "away.db", steps)
    there, away = times["there"], times["away"]
    ratio = statistics.median(away) / statistics.median(there)
    low, high = interval(there, away)
    print(f"server there: {statistics.median(there) * 1e3:6.1f} ms a step, median of {len(there)}")
    print(f"server away:  {statistics.median(away) * 1e3:6.1f} ms a step, median of {len(away)}")
    print(f"away / there: {ratio:.3f}  (95 % interval {low:.3f} to {high:.3f})")
    return {"ratio": ratio, "low": low, "high": high}


def measure(db: Path, steps: int) -> dict[str, list[float]]:
    """Step times in seconds, by whether the server was there all through the step."""
    port = free_port()
    server: Server | None = Server(db, port).__enter__()
    ranks = start_ranks(f"http://127.0.0.1:{port}", steps)
    ends_s: list[float] = []
    reader = threading.Thread(target=stamp, args=(ranks[0].stdout, ends_s))
    reader.start()
    spans: list[tuple[str, float, float]] = []
    while reader.is_alive():
        began_s = time.perf_counter() + SETTLE_S
        time.sleep(BLOCK_S)
        spans.append(("there" if server else "away", began_s, time.perf_counter()))
        server = toggle(server, db, port)  # a starting server takes a core for a second: that time is in no span
    for rank in ranks:
        rank.wait()
    if server:
        server.stop()
    return sorted_out(ends_s[WARM_UP_STEPS:], spans)


def stamp(lines: IO[str], ends_s: list[float]) -> None:
    """When each step's line came, whatever else this program is doing."""
    for _ in lines:
        ends_s.append(time.perf_counter())


def sorted_out(ends_s: list[float], spans: list[tuple[str, float, float]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"there": [], "away": []}
    for before_s, after_s in itertools.pairwise(ends_s):
        for name, began_s, ended_s in spans:
            if began_s <= before_s and after_s <= ended_s:
                times[name].append(after_s - before_s)
    return times


def toggle(server: Server | None, db: Path, port: int) -> Server | None:
    if server is None:
        return Server(db, port).__enter__()
    server.process.kill()
    server.process.wait()
    return None


def start_ranks(url: str, steps: int) -> list[subprocess.Popen]:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANGEWATCH_URL": url}
    shared |= {"RANGEWATCH_RUN": "away", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "rangewatch.commands.demo.train", "--steps", str(steps)]
    return [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(2)
    ]  # fmt: skip


def interval(there: list[float], away: list[float]) -> tuple[float, float]:
    """Bootstrap of the ratio of medians."""
    pick = random.Random(0)
    ratios = sorted(
        statistics.median(pick.choices(away, k=len(away))) / statistics.median(pick.choices(there, k=len(there)))
        for _ in range(BOOTSTRAPS)
    )
    return ratios[int(BOOTSTRAPS * 0.025)], ratios[int(BOOTSTRAPS * 0.975)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
