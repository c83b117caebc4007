"""A fleet on two cores: 1,024 simulated ranks x 600 tensors, a step a second, for ten minutes, over real HTTP.

    python bench/fleet.py [--db postgresql://...] [--seconds 600] [--full-every 1]      does it keep up?
    python bench/fleet.py --find-limit                                                   and until when?
    python bench/fleet.py --ranks 200 --pages 1000            with live pages open that nobody looks at, and without

The load (`load/fleet_load.py`) is one process and the server another; they share this machine's cores, so a server of
its own would do better. Printed: whether all was acknowledged and how soon, the queue, the server's memory over time,
both processes' shares of a core, the home page meanwhile, and what is stored. The last line is JSON.

Predicted before measuring: 3.1 M values/s all acknowledged with the server asking for a batch each 10 s or more, since
1,024 messages a second would be more than its HTTP layer takes; p99 0.5 s, memory flat at 600 MiB, home page 50 ms at
the median and 150 ms at p95; server 0.7 of a core, load 0.3; the limit at 4 steps a second, when ranks send 40 steps
at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from load.fleet_load import add_options
from load.traffic import values_a_step
from servers.process import Server, fresh_database
from servers.watch import Sample, Watch, slope_mib_per_min

BENCH = Path(__file__).parent
WATCH_EVERY_S = 2.0
TOTALS = ("steps", "made", "acknowledged", "values", "refused", "rejected", "send_every_s")


def main() -> int:
    options = parse_options()
    with fresh_database(options.db) as database:
        with Server(database.db, 0, *options.serve) as server:
            empty_bytes = 0 if database.is_sqlite else database.nbytes()
            with live_pages(server.url, options.pages) as pages:
                counts, samples = drive(server, options)
        stored_bytes = database.nbytes() - empty_bytes
    result = summary(counts, samples, stored_bytes)
    print_summary(result)
    if pages is not None:
        live = pages.newest
        print(f"{live['open']} of {options.pages} live pages left open, {live['cut']} cut, {live['events']:,} events")
    if options.find_limit:
        print_limit(counts, options)
    shown = {name: value if math.isfinite(value) else None for name, value in result.items()}
    print(json.dumps({"benchmark": "fleet", "options": vars(options), "result": shown, "memory": memory(samples)}))
    made = result["steps"] * options.ranks * options.tensors * values_a_step(options.full_every)
    return 0 if result["values"] == made and not result["rejected"] else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--db", default="", help="PostgreSQL to make a database on; default: a SQLite file")
    parser.add_argument("--serve", action="append", default=[], help="--serve=--option: for `rangewatch serve`")
    parser.add_argument("--pages", type=int, default=0, help="live pages that are open all the time")
    parser.add_argument("--quick", action="store_true", help="8 ranks for a second: whether it runs at all")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.tensors, options.steps_per_s = 8, 20, 4.0
        options.seconds, options.stage_s, options.growth, options.behind_s = 1.0, 1.0, 4.0, 0.0
    if options.pages:
        options.serve.append(f"--max-streams={options.pages}")
    return options


class Pages:
    """Live pages in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.newest: dict[str, int] = {}

    def read(self) -> None:
        """What it tells, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.newest = json.loads(line)


@contextlib.contextmanager
def live_pages(url: str, count: int) -> Iterator[Pages | None]:
    """`count` of them, open before anything else begins; None without any."""
    if not count:
        yield None
        return
    command = [sys.executable, "-m", "load.fleet_pages", url, str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=BENCH)
    pages = Pages(process)
    reader = threading.Thread(target=pages.read, daemon=True)
    reader.start()
    try:
        while pages.newest.get("open", 0) < count and process.poll() is None:
            time.sleep(0.5)
        yield pages
    finally:
        process.kill()
        process.wait()


def drive(server: Server, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Sample]]:
    """The load's reports, one a second, and what was seen of the server meanwhile."""
    shared = ["ranks", "tensors", "steps_per_s", "seconds", "full_every", "stage_s", "growth", "behind_s"]
    command = [sys.executable, "-m", "load.fleet_load", server.url]
    command += [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in shared]
    command += ["--find-limit"] if options.find_limit else []
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=BENCH)
    assert load.stdout is not None
    watch = Watch(server, load.pid, min(WATCH_EVERY_S, options.seconds / 4))
    watch.start()
    counts = []
    try:
        for line in load.stdout:
            counts.append(json.loads(line))
            show(counts[-1])
    finally:
        load.kill()
        load.wait()
        watch.stop()
    sys.stderr.write("\n")
    if not counts or not watch.samples:
        raise RuntimeError("the load ended before it began")
    return counts, watch.samples


def show(count: dict[str, Any]) -> None:
    sys.stderr.write(
        f"\r{count['elapsed_s']:5.0f} s  {count['steps_per_s']:.2f} steps/s  {count['acknowledged']:,} of "
        f"{count['made']:,} batches acknowledged, oldest {count['oldest_s']:.1f} s  "
    )


def summary(counts: list[dict[str, Any]], samples: list[Sample], stored_bytes: int) -> dict[str, Any]:
    """Figures of the whole run; latencies in ms, shares of one core."""
    last = counts[-1]
    latencies_ms = np.concatenate([each["latencies_ms"] for each in counts])
    pages_ms = [each.page_ms for each in samples]
    p50_ms, p99_ms, most_ms = np.percentile(latencies_ms, (50, 99, 100))
    page_p50_ms, page_p95_ms, page_most_ms = np.percentile(pages_ms, (50, 95, 100))
    return {name: last[name] for name in TOTALS} | {
        "seconds": last["elapsed_s"], "values_per_s": last["values"] / last["elapsed_s"],
        "requests_per_s": last["acknowledged"] / last["elapsed_s"],
        "p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": most_ms, "load_late_s": max(each["late_s"] for each in counts),
        "oldest_s": max(each["oldest_s"] for each in counts), "queue_max": max(each.queue for each in samples),
        "page_p50_ms": page_p50_ms, "page_p95_ms": page_p95_ms, "page_max_ms": page_most_ms,
        "server_cpu": float(np.mean([each.server_cpu for each in samples])),
        "load_cpu": float(np.mean([each.load_cpu for each in samples])),
        "rules_of_a_core": samples[-1].rules_s / last["elapsed_s"],
        "rss_mib": samples[-1].rss_bytes / 2**20, "rss_max_mib": max(each.rss_bytes for each in samples) / 2**20,
        "rss_slope_mib_per_min": slope_mib_per_min(samples),
        "stored_bytes": stored_bytes, "bytes_per_value": stored_bytes / max(last["values"], 1),
    }  # fmt: skip


def print_summary(found: dict[str, Any]) -> None:
    print("acknowledged {acknowledged:,} of {made:,} batches ({refused:,} asked to come again, {rejected} refused for "
          "good), {values_per_s:,.0f} values/s in {requests_per_s:,.0f} requests/s, one a rank each "
          "{send_every_s:g} s\n"
          "acknowledgement p50 {p50_ms:.0f} ms  p99 {p99_ms:.0f} ms  max {max_ms:.0f} ms; oldest unacknowledged "
          "{oldest_s:.1f} s; most in the queue {queue_max:.0f}; load behind its clock by at most {load_late_s:.2f} s\n"
          "home page p50 {page_p50_ms:.0f} ms  p95 {page_p95_ms:.0f} ms  max {page_max_ms:.0f} ms\n"
          "server {server_cpu:.2f} of a core, the rules at most {rules_of_a_core:.3f} of one, load {load_cpu:.2f}; "
          "memory {rss_mib:.0f} MiB at the end, at most "
          "{rss_max_mib:.0f}, growing by {rss_slope_mib_per_min:.1f} MiB a minute\n"
          "stored {stored_bytes:,} bytes, {bytes_per_value:.2f} a value".format(**found))  # fmt: skip


def print_limit(counts: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Each stage, and the last that kept up."""
    kept = 0.0
    for steps_per_s, stage in itertools.groupby(counts, key=lambda each: each["steps_per_s"]):
        reported = list(stage)
        latencies_ms = np.concatenate([each["latencies_ms"] for each in reported])
        p99_ms = np.percentile(latencies_ms, 99) if len(latencies_ms) else math.inf
        is_behind = any(each["is_behind"] for each in reported)
        kept = kept if is_behind else steps_per_s
        oldest_s, late_s = (max(each[name] for each in reported) for name in ("oldest_s", "late_s"))
        line = f"  {steps_per_s:6.2f} steps/s: p99 {p99_ms:7.0f} ms, oldest {oldest_s:5.1f} s, load late {late_s:.2f} s"
        print(line + (", behind" if is_behind else ""))
    values = kept * options.ranks * options.tensors * values_a_step(options.full_every)
    print(f"the limit: {options.ranks} ranks at {kept:.2f} steps a second, {values:,.0f} values/s")


def memory(samples: list[Sample]) -> list[tuple[int, int]]:
    """(second, MiB) of the server, at most 60 of them."""
    return [(round(each.at_s), each.rss_bytes >> 20) for each in samples[:: len(samples) // 60 + 1]]


if __name__ == "__main__":
    sys.exit(main())
