"""What a reader waits for: a run of 1,000,000 steps in a real Chromium over a real server.

    python bench/web.py [--keep DIR] [--samples 20] [--minutes 10] [--quick] [--against TREE --rounds 3]

The run is the one of `query.py` (1,000,000 steps x 300 tensors x 1 rank; --keep shares its files). Times are taken in
the page, from the navigation or the event to the frame after the last lane was drawn: a first view in a fresh profile
on a fresh server (cold) and again in the same tab (warm), a drag on a lane, "Show all steps", and a click from page to
page. Then the same run goes on live, a batch of 5 steps twice a second: the lag is from before the batch is posted
until every lane has been drawn with its last step. --minutes of that show whether the tab's memory stays flat; the
claim is of 60. Baselines: the page of a run that does not exist, which is all that is not the run's, and Plotly drawing
every point of one single line, as a page would without max-pooling. Chromium, server and load share the machine's
cores, and nothing debugs the tab (pages/chromium.py says why). The last line is JSON.

--against TREE, a checkout of another state, runs that tree's own bench and this one's in turn, each on a database of
the same run that it has written itself (what agents send has changed), and prints both and their ratio.

Predicted before measuring: first view 800 ms cold and 400 ms warm, zoom and switch 150 ms, live lag p95 700 ms, heap
flat within 5 %; one line with all its points 3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from load.query_build import kept
from pages.chromium import Browser, chromium
from pages.live import watch
from pages.tab import ALL_POINTS, HEIGHT, WIDTH, Tab, percentiles
from servers.process import Server

RUN = "/runs/1"
PLOT = """(() => {
  const figure = document.querySelector("[data-testid=figure-loss]");
  const { x, y, height } = figure.getBoundingClientRect();
  return { x: x + figure._fullLayout.xaxis._offset, width: figure._fullLayout.xaxis._length, y, height };
})()"""
SHOW_ALL = "[data-command='all-steps']"
PAGES = ("overview", "layers")
AIM_MS = {"first view, cold": 1_000, "first view, warm": 1_000, "zoom": 200, "show all steps": 200, "switch": 200}
SETTLE_S = 1.2  # between two actions: what one has fetched is not to make the next wait
MIB = 2**20


def main() -> None:
    options = parse_options()
    if options.against:
        against(options)
    else:
        alone(options)


def alone(options: argparse.Namespace) -> None:
    """This tree's figures."""
    with tempfile.TemporaryDirectory(prefix="rangewatch-web-") as folder, chromium() as browser:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        path = kept(keep, options.steps, options.tensors, 1)
        found = views(browser, path, options)
        with Server(path) as server, Tab(browser, server.url) as tab:
            found |= actions(tab, options)
            baselines = {"all_points_ms": float(tab.evaluate(f"({ALL_POINTS})({options.steps})"))}
            baselines["empty_ms"] = tab.first_view_ms("/runs/999", "noView")
        own = shutil.copy(path, Path(folder) / "live.db")  # what is kept stays as it is
        with Server(own) as server, Tab(browser, server.url) as tab:
            live = watch(tab, RUN, options.steps, options.tensors, options.minutes)
    result = {"times": {name: percentiles(each) for name, each in found.items()}, **baselines, **live}
    show(result, options)
    print(json.dumps({"benchmark": "web", "steps": options.steps, "tensors": options.tensors, **result}))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder of the database, some 2 GB; default: for this time only")
    parser.add_argument("--samples", type=int, default=20, help="of each action; a quarter as many first views")
    parser.add_argument("--minutes", type=float, default=10, help="of live updates")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="a small run, two samples: whether it runs at all")
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="a checkout of another state, run in turn with this"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of --against")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.tensors, options.samples, options.minutes = 3_000, 12, 2, 0.1
    return options


def against(options: argparse.Namespace) -> None:
    """Both trees in turn; of each figure the median of the rounds."""
    trees = {"other": options.against.resolve(), "this": Path(__file__).resolve().parents[1]}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory(prefix="rangewatch-web-") as folder:
        for number in range(options.rounds):
            for name in sorted(trees, reverse=bool(number % 2)):
                found[name].append(bench_of(trees[name], (options.keep or Path(folder)) / name, options))
                print(f"round {number + 1}, {name}: {json.dumps(found[name][-1])}", flush=True)
    print(f"\n{options.rounds} rounds of each, in turn; medians; {trees['other']} against this tree")
    print(f"{'ms':<24} {'p50 other':>10} {'p50 this':>10} {'ratio':>7} {'p95 other':>10} {'p95 this':>10} {'ratio':>7}")
    ratios: dict[str, dict[str, float]] = {}
    for name in found["this"][0]:
        row, ratios[name] = f"{name:<24}", {}
        for share in ("p50", "p95"):
            other, this = (median([each[name][share] for each in found[tree]]) for tree in ("other", "this"))
            ratios[name][share] = this / other
            row += f" {other:10.0f} {this:10.0f} {this / other:7.2f}"
        print(row)
    print(json.dumps({"benchmark": "web against", "rounds": options.rounds, "ratios": ratios}))


def bench_of(tree: Path, keep: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What the tree's own bench prints of its own pages and server, by name."""
    given = {name: getattr(options, name) for name in ("samples", "minutes", "steps", "tensors")}
    arguments = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    paths = os.pathsep.join(str(tree / part) for part in ("agent", "server"))
    done = subprocess.run(
        [sys.executable, str(tree / "bench" / "web.py"), "--keep", str(keep.resolve()), *arguments],
        cwd=tree, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    return result["times"] | {"live lag": result["lag_ms"]}


def views(browser: Browser, path: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """First views, each on a server that has decoded nothing, in a profile that has compiled nothing; then again."""
    found: dict[str, list[float]] = {"first view, cold": [], "first view, warm": []}
    for _ in range(max(1, options.samples // 4)):
        with Server(path) as server, Tab(browser, server.url) as tab:
            found["first view, cold"].append(tab.first_view_ms(RUN))
            found["first view, warm"].append(tab.first_view_ms(RUN))
    return found


def actions(tab: Tab, options: argparse.Namespace) -> dict[str, list[float]]:
    """Zooms, back to all steps, and from page to page."""
    pick = random.Random(1)
    found: dict[str, list[float]] = {"zoom": [], "show all steps": [], "switch": []}
    tab.first_view_ms(RUN)
    for _ in range(options.samples):
        found["zoom"].append(drag(tab, pick))
        found["show all steps"].append(click(tab, SHOW_ALL))
        found["switch"] += [click(tab, f"#nav a[data-page={page}]") for page in reversed(PAGES)]
    return found


def drag(tab: Tab, pick: random.Random) -> float:
    """Over a random part of a lane: what is shown then is between a thousandth and a half of the run."""
    time.sleep(SETTLE_S)
    box: dict[str, float] = tab.evaluate(PLOT)
    width = box["width"] * pick.uniform(0.03, 0.5)
    left, y = box["x"] + pick.uniform(0, box["width"] - width), box["y"] + box["height"] / 2
    tab.mouse("mousePressed", left, y)
    for part in (0.25, 0.5, 0.75, 1):
        tab.mouse("mouseMoved", left + part * width, y)
    tab.arm("pointerup")
    tab.mouse("mouseReleased", left + width, y)
    return tab.took_ms()


def click(tab: Tab, selector: str) -> float:
    time.sleep(SETTLE_S)
    tab.arm("click")
    tab.click(selector)
    return tab.took_ms()


def show(result: dict[str, Any], options: argparse.Namespace) -> None:
    print(f"\n{options.steps:,} steps x {options.tensors} tensors in Chromium, {WIDTH} x {HEIGHT}")
    print(f"{'':<24} {'p50':>8} {'p95':>8} {'max':>8}   {'aim':>8}   ms")
    for name, each in {**result["times"], "live lag": result["lag_ms"]}.items():
        aim = AIM_MS.get(name, 1_000)
        print(f"{name:<24} {each['p50']:8.0f} {each['p95']:8.0f} {each['max']:8.0f}   {f'< {aim:,}':>8}")
    first, empty, points = result["times"]["first view, warm"]["p50"], result["empty_ms"], result["all_points_ms"]
    print(f"{'a run that is not there':<24} {empty:8.0f}   the warm first view is {first / empty:.1f} times that")
    print(f"{'one line, all points':<24} {points:8.0f}   {points / first:.1f} times the warm first view of all lanes")
    print(f"\n{options.minutes:g} minutes of live updates, two a second; medians of the first and the last quarter")
    for name, each in result["memory"].items():
        unit, scale = ("MiB", MIB) if name.endswith("_bytes") else ("", 1)
        first, last = each["first"] / scale, each["last"] / scale
        print(f"{name:<24} {first:8,.1f} {last:8,.1f} {unit:<3}   ratio {each['ratio']:.3f}, aim 1")


if __name__ == "__main__":
    main()
