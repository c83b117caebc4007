"""Who is named: 30 ms planted on one of four gloo ranks in three places, then nothing; and a rank that stops.

    python bench/stragglers.py [--seeds 20] [--only backward,SIGSTOP] [--at-once 2]

For each seed a run of 80 steps in which every rank is late now and then by chance. Right: rank 2 is named, with the
class and the place of what was planted; where nothing was planted, nobody. False: another rank is named, or any where
none is late. Of a rank that skips an all_reduce, calls it with another size, is stopped or killed, the seconds count
from the stop until a `GET` names it; agents tell of a stall after 8 s, and gloo itself gives up after five minutes.

Predicted: all right, none false; 9 to 13 s.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

from servers.process import Server

WORKER = Path(__file__).parents[1] / "tests" / "e2e" / "four_ranks.py"
PLACES = {
    "before backward": {"before backward", "forward"},
    "backward": {"inside backward"},
    "data loader": {"data loader"},
    "nothing": {None},
}
STOPS = ("skip", "size", "SIGSTOP", "SIGKILL")
WANTED, RANKS, PATIENCE_S = 2, 4, 60.0

pool = urllib3.PoolManager(maxsize=8)


class Answer(NamedTuple):
    """Of one seed: "right", "false" or "missed", and how long it took to be named where a rank stopped."""

    word: str
    said: str
    seconds: float | None = None


def main() -> int:
    """Print the table, and the same as a line of JSON."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "stragglers.db") as server:
        answers = dict(asked(server.url, options))
    print(f"{'planted':<18}{'right':>7}{'false':>7}{'missed':>8}{'named after, s (median, most)':>32}")
    for trouble, found in answers.items():
        counts = {word: sum(each.word == word for each in found) for word in ("right", "false", "missed")}
        times_s = [each.seconds for each in found if each.seconds is not None]
        took = f"{statistics.median(times_s):.1f}, {max(times_s):.1f}" if times_s else ""
        print(f"{trouble:<18}{counts['right']:>7}{counts['false']:>7}{counts['missed']:>8}{took:>32}")
    print(json.dumps({"benchmark": "stragglers", "cases": answers}))
    return int(any(each.word != "right" for found in answers.values() for each in found))


def asked(url: str, options: argparse.Namespace) -> Iterator[tuple[str, list[Answer]]]:
    """Case by case."""
    seeds = [str(seed) for seed in range(1, options.seeds + 1)]
    for trouble in options.only:
        print(f"{trouble}: {len(seeds)} seeds", file=sys.stderr, flush=True)
        if trouble in PLACES:
            finish(start(url, trouble, seeds))
            found = [verdict_of(url, trouble, seed) for seed in seeds]
        else:
            with ThreadPoolExecutor(options.at_once) as threads:
                found = list(threads.map(lambda seed: stopped(url, trouble, seed), seeds))  # noqa: B023
        for seed, answer in zip(seeds, found, strict=True):
            if answer.word != "right":
                print(f"  seed {seed}: {answer.word}: {answer.said}", file=sys.stderr)
        yield trouble, found


def verdict_of(url: str, trouble: str, seed: str) -> Answer:
    """What the Collectives page says of the whole run."""
    verdict = get(f"{url}/api/v1/runs/{run_of(url, f'{trouble} {seed}')}/collectives")["verdict"]
    rank, where, text = (verdict or {}).get("rank"), (verdict or {}).get("where"), str((verdict or {}).get("text"))
    wanted = None if trouble == "nothing" else WANTED
    if rank == wanted and (rank is None or where in PLACES[trouble]):
        return Answer("right", text)
    return Answer("missed" if rank is None else "false", text)


def stopped(url: str, trouble: str, seed: str) -> Answer:
    """Watch until somebody is named."""
    ranks = start(url, trouble, [seed])
    try:
        output = ranks[WANTED].stdout
        assert output is not None
        since_s = float(output.readline())
        hang = until(lambda: named(url, f"{trouble} {seed}"))
        took_s = time.time() - since_s
    finally:
        for rank in ranks:
            rank.kill()
        finish(ranks)
    if hang is None:
        return Answer("missed", f"nobody within {PATIENCE_S:.0f} s")
    return Answer("right" if hang["culprits"] == [WANTED] else "false", hang["text"], took_s)


def named(url: str, name: str) -> dict[str, Any] | None:
    """The hang, once it names anybody, or the death of a rank, which its node's watcher may tell sooner."""
    run = f"{url}/api/v1/runs/{run_of(url, name)}"
    hang = get(f"{run}/hang")["hang"]
    if hang and hang["culprits"]:
        return hang
    died = get(run)["deaths"]
    return {"culprits": [each["rank"] for each in died], "text": died[0]["text"]} if died else None


def until(look: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What `look` finds in time."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.25)
    return None


def start(url: str, trouble: str, seeds: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Four ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    command = [sys.executable, str(WORKER), url, trouble, *seeds]
    return [
        subprocess.Popen(
            command,
            env=usual | {"OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(RANKS)
    ]


def finish(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for their end."""
    for rank in ranks:
        rank.communicate()


def run_of(url: str, name: str) -> int:
    """The run's number."""
    return next(int(run["id"]) for run in get(f"{url}/api/v1/runs?limit=500")["runs"] if run["name"] == name)


def get(url: str) -> Any:
    """A JSON answer."""
    response = pool.request("GET", url, timeout=30.0)
    if response.status != 200:
        raise RuntimeError(f"{url}: {response.status} {response.data[:200]!r}")
    return response.json()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = [*PLACES, *STOPS]
    parser.add_argument("--seeds", type=int, default=20, help="runs of each case")
    parser.add_argument("--only", default=",".join(cases), help="cases, with commas between")
    parser.add_argument("--at-once", type=int, default=2, help="jobs with a stopped rank at a time: they mostly wait")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(cases):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    if min(options.seeds, options.at_once) < 1:
        parser.error("seeds and at-once are at least 1")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
