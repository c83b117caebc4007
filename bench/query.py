"""Time to answer a slice out of a long run, over real HTTP: any two axes, any part of the run, any zoom.

    python bench/query.py [--keep DIR] [--samples 10]

Runs of 10,000, 100,000 and 1,000,000 steps x 300 tensors x 1 rank, and 100,000 x 300 x 8, are built by the real writer
(some minutes; --keep has them for the next time). A sample is a freshly started server that is asked every kind of
slice at every zoom once, in random order, at random steps, tensors and ranks: that is "cold", with no tile decoded, but
with the file in the system's memory; then all of it again: "warm". Times are of whole requests at the client over
loopback, so with HTTP and JSON. The baseline is what a server without a pyramid must do: read and merge every raw step.
The last line is JSON.

Predicted before measuring: p95 30 ms warm and 45 ms cold at 8 ranks, less with one; 1,000,000 steps no dearer than
10,000; reading raw steps 8 s for each 100,000.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import urllib3

from load.query_build import kept
from rangewatch_server.query.reader import Queries
from rangewatch_server.store.engine import open_database
from servers.process import Server

WHAT = {
    "layers": "figures/layers?columns=1000&rows=400&rank={rank}",
    "timeline": "figures/timeline?columns=1000",
    "tensor": "figures/tensor?columns=1000&tensor={tensor}&rank={rank}",
    "loss": "figures/loss?columns=1000",
    "step x tensor": "slice?axes=step,tensor&columns=250&rank={rank}",
    "step x rank": "slice?axes=step,rank&columns=1000&tensor={tensor}",
    "rank x tensor": "slice?axes=rank,tensor",
}
RUNS = ((10_000, 1), (100_000, 1), (1_000_000, 1), (100_000, 8))  # steps, ranks
PASSES = ("cold", "warm")
RAW_STEPS = 16_384  # read raw and scaled up: 100,000 steps of 300 tensors are 1 GB as float64


class Timed(NamedTuple):
    """One request."""

    what: str
    zoom: int
    """Steps asked for."""
    pass_: str
    ms: float


def main() -> None:
    options = parse_options()
    results = []
    with tempfile.TemporaryDirectory(prefix="rangewatch-query-") as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        for steps, ranks in options.runs:
            path = kept(keep, steps, options.tensors, ranks)
            timed = [each for seed in range(options.samples) for each in sample(path, steps, ranks, options, seed)]
            results.append(summary(steps, options.tensors, ranks, timed, raw_ms(path, steps, ranks)))
            print_run(results[-1], timed)
    print_lengths([each for each in results if each["ranks"] == 1])
    print(json.dumps({"benchmark": "query", "samples": options.samples, "results": results}))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder of the databases, some 2 GB; default: for this time only")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--scale", type=float, default=1.0, help="of the runs' steps")
    parser.add_argument("--quick", action="store_true", help="two small runs, one sample: whether it runs at all")
    options = parser.parse_args()
    options.runs = [(max(128, round(steps * options.scale)), ranks) for steps, ranks in RUNS]
    if options.quick:
        options.runs, options.samples, options.tensors = [(700, 2)], 1, 12
    return options


def sample(path: Path, steps: int, ranks: int, options: argparse.Namespace, seed: int) -> list[Timed]:
    """Every kind of slice at every zoom once, on a new server, and then once more."""
    pick = random.Random(seed)
    asked = []
    for what, zoom in itertools.product(WHAT, zooms(steps)):
        asked.append((what, zoom, request(what, zoom, steps, ranks, options.tensors, pick)))
    found = []
    with Server(path) as server:
        pool = urllib3.PoolManager(maxsize=1)
        for pass_ in PASSES:
            pick.shuffle(asked)
            for what, zoom, query in asked:
                found.append(Timed(what, zoom, pass_, get_ms(pool, f"{server.url}/api/v1/runs/1/{query}")))
    return found


def zooms(steps: int) -> list[int]:
    """From a tile's width by 8 up to the whole run."""
    widths = [64]
    while widths[-1] * 8 < steps:
        widths.append(widths[-1] * 8)
    return [*widths, steps]


def request(what: str, zoom: int, steps: int, ranks: int, tensors: int, pick: random.Random) -> str:
    """A random slice: half of them of all ranks."""
    rank = "all" if pick.random() < 0.5 else pick.randrange(ranks)
    start = pick.randint(0, steps - zoom)
    return f"{WHAT[what].format(rank=rank, tensor=pick.randrange(tensors))}&start={start}&stop={start + zoom}"


def get_ms(pool: urllib3.PoolManager, url: str) -> float:
    began_s = time.perf_counter()
    answer = pool.request("GET", url)
    if answer.status != 200:
        raise RuntimeError(f"{url}: {answer.status} {answer.data[:200]!r}")
    return (time.perf_counter() - began_s) * 1e3


def raw_ms(path: Path, steps: int, ranks: int) -> float:
    """One rank's raw steps, read and merged to 1,000 columns with no pyramid; the same for all steps and ranks."""
    engines = open_database(f"sqlite:///{path}")
    count = min(steps, RAW_STEPS)
    with Queries(engines.reader, 15).read() as reader:
        run = reader.run(1)
        assert run is not None
        began_s = time.perf_counter()
        block = run.slice("ranges", [0], 0, 0, count, ["call_count", "amax", "nan_count", "inf_count"])
        np.maximum.reduceat(block.columns["amax"], np.arange(0, count, max(1, count // 1_000)), axis=1)
        took_s = time.perf_counter() - began_s
    engines.dispose()
    return took_s * 1e3 * ranks * steps / count


def summary(steps: int, tensors: int, ranks: int, timed: list[Timed], raw: float) -> dict[str, Any]:
    """Percentiles of all, by kind and by zoom."""
    return {
        "steps": steps, "tensors": tensors, "ranks": ranks, "raw_ms": raw, "all": passes(timed),
        "by_kind": {what: passes([each for each in timed if each.what == what]) for what in WHAT},
        "by_zoom": {zoom: passes([each for each in timed if each.zoom == zoom]) for zoom in zooms(steps)},
    }  # fmt: skip


def passes(timed: list[Timed]) -> dict[str, dict[str, float]]:
    """p50, p95 and the most, cold and warm."""
    found = {}
    for pass_ in PASSES:
        p50, p95, most = np.percentile([each.ms for each in timed if each.pass_ == pass_], (50, 95, 100))
        found[pass_] = {"p50_ms": p50, "p95_ms": p95, "max_ms": most}
    return found


def print_run(found: dict[str, Any], timed: list[Timed]) -> None:
    print(f"\n{found['steps']:,} steps x {found['tensors']} tensors x {found['ranks']} ranks, {len(timed)} requests")
    print(f"{'':<24} {'cold p50':>9} {'p95':>7} {'max':>7}   {'warm p50':>9} {'p95':>7} {'max':>7}   ms")
    print_line("all", found["all"])
    for what, each in found["by_kind"].items():
        print_line(f"  {what}", each)
    for zoom, each in found["by_zoom"].items():
        print_line(f"  {zoom:,} steps", each)
    ratio = found["raw_ms"] / found["by_zoom"][found["steps"]]["cold"]["p50_ms"]
    print(f"reading every raw step instead: {found['raw_ms']:,.0f} ms, {ratio:,.0f} x the cold median", flush=True)


def print_line(name: str, found: dict[str, Any]) -> None:
    cells = [found[pass_][each] for pass_ in PASSES for each in ("p50_ms", "p95_ms", "max_ms")]
    print("{:<24} {:9.1f} {:7.1f} {:7.1f}   {:9.1f} {:7.1f} {:7.1f}".format(name, *cells))


def print_lengths(results: list[dict[str, Any]]) -> None:
    """What the length of a run costs: the same zooms side by side."""
    if len(results) < 2:
        return
    shared = list(results[0]["by_zoom"])[:-1]
    heads = [f"{zoom:,} steps" for zoom in shared] + ["all of it"]
    print("\ncost against the length of the run, one rank: cold p50 (p95) in ms")
    print("steps of the run  " + "".join(f"{head:>16}" for head in heads))
    for each in results:
        colds = [each["by_zoom"][zoom]["cold"] for zoom in [*shared, each["steps"]]]
        cells = [f"{cold['p50_ms']:.1f} ({cold['p95_ms']:.1f})" for cold in colds]
        print(f"{each['steps']:<18,}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
