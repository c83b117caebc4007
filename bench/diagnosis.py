"""Planted faults in real trainings, and what Rangewatch says of them: origin, class, warning ahead, other findings.

    python bench/diagnosis.py [--seeds 3] [--healthy 50] [--only PATTERN]

Each fault of `tests/faults` is trained on this CPU (those of several ranks in gloo processes) with the real agent,
which sends to a server of its own; then the diagnosis is asked for as a user would. What is true is known from what was
planted, and from plain hooks. Healthy trainings are asked about at every 10th step. At last the rules' own cost: a look
at a run of 8 ranks x 300 tensors.

Predicted before measuring: origin right in all cases and seeds; every gradual one warned of by 5 steps or more; no
false alarm; a look at 8 ranks x 300 tensors takes under 200 ms.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import cases
from tests.faults.conftest import Runs
from tests.faults.fault import Fault, Job
from tests.faults.healthy import healthy, stops
from tests.faults.ranks import launch, run_name
from tests.faults.verdict import LEAD, lead, verdict
from tests.server.opened_store import Store

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry
from rangewatch_server.rules.diagnosis import diagnose

STEPS, TENSORS, RANKS, LOOKS = 512, 300, 8, 5


def main() -> None:
    """Print the table, and as its last line the totals as JSON."""
    options = _options()
    os.environ["RANGEWATCH_WATCHER"] = "0"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        os.environ["RANGEWATCH_SPOOL_DIR"] = folder
        runs = Runs(Path(folder))
        try:
            rows = list(faults(runs, options.seeds, options.only))
            alarms = false_alarms(runs, options.healthy, options.steps)
        finally:
            runs.server.stop()
        looked_ms = cost(Path(folder) / "cost.db")
    print(json.dumps(totals(rows) | {"healthy": options.healthy, "false_alarms": alarms, "look_ms": looked_ms}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=50, help="trainings in which nothing is wrong")
    parser.add_argument("--steps", type=int, default=300, help="of each healthy one")
    parser.add_argument("--only", default="*", help="a pattern of the faults' names")
    return parser.parse_args()


def faults(runs: Runs, seeds: int, only: str) -> Iterator[dict[str, Any]]:
    """A row for each fault and seed, printed as it is known."""
    print(f"{'fault':<52} seed  origin  class  ahead  other findings")
    for seed in range(seeds):
        for fault in cases.ALL:
            if fnmatch.fnmatch(fault.name, only):
                row = one(runs, fault, seed)
                print(_line(row, seed), flush=True)
                yield row


def _line(row: dict[str, Any], seed: int) -> str:
    ahead = row["lead"] or ("never" if row["warned"] else "")
    verdicts = f"{_word(row['origin'])}     {_word(row['class'])}    {ahead:>5}"
    return f"{row['name']:<52} {seed:>4}  {verdicts}  {', '.join(row['extra'])}"


def _word(is_right: bool) -> str:
    return "yes" if is_right else "NO "


def one(runs: Runs, fault: Fault, seed: int) -> dict[str, Any]:
    """Train it, and ask."""
    job = Job(runs.url, run_name(fault, seed), seed)
    if fault.ranks > 1:
        launch(runs.url, seed, [fault])
    else:
        torch.manual_seed(seed)
        fault.train(job)
    ask = runs.ask(job.run)
    found = verdict(fault, job.truth, ask)
    ahead = lead(ask, job.truth[0]) if fault.warned and job.truth is not None else None
    return {
        "name": fault.name, "origin": found.is_right, "class": found.is_class_right, "lead": ahead,
        "warned": fault.warned, "extra": found.extra,
    }  # fmt: skip


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of all."""
    gradual = [each for each in rows if each["warned"]]
    return {
        "faults": len(rows), "origin": sum(each["origin"] for each in rows),
        "class": sum(each["class"] for each in rows),
        "gradual": len(gradual), "warned": sum((each["lead"] or 0) >= LEAD for each in gradual),
        "least_lead": min((each["lead"] or 0 for each in gradual), default=None),
        "extra": sum(len(each["extra"]) for each in rows),
    }  # fmt: skip


def false_alarms(runs: Runs, count: int, steps: int) -> int:
    """Healthy trainings of which something critical or a warning was found, at any step asked about."""
    alarms = 0
    for training in healthy(count):
        training.train(runs.url, steps)
        ask = runs.ask(training.name)
        loud = {
            (each["rule"], stop)
            for stop in stops(steps)
            for each in ask(stop)["findings"]
            if each["severity"] != "info"
        }
        alarms += bool(loud)
        if loud:
            print(f"{training.name}: {sorted(loud, key=str)[:3]}", flush=True)
    print(f"{count} healthy trainings of {steps} steps: {alarms} with a false alarm")
    return alarms


def cost(database: Path) -> dict[str, float]:
    """Milliseconds of a look at a healthy run by all rules, from nothing known."""
    store = Store(f"sqlite:///{database}")
    try:
        _write(store)
        spent = [_look(store) for _ in range(LOOKS)]
    finally:
        store.close()
    whole = 1e3 * float(np.median(spent))
    print(f"a look at {RANKS} ranks x {TENSORS} tensors: {whole:.0f} ms, median of {LOOKS}")
    return {"all": round(whole, 1)}


def _write(store: Store) -> None:
    kinds = ("output", "grad_output", "grad")
    entries = [
        TensorEntry(f"blocks.{at}.ff", kinds[at % 3], 0, "float16", (4, 8), at, "Linear") for at in range(TENSORS)
    ]
    known, steps = Catalogue(statistics.ALL, tuple(entries)), np.arange(STEPS)
    usual = {"call_count": 1.0, "numel": 32.0, "nan_count": 0.0, "inf_count": 0.0}
    for rank in range(RANKS):
        store.send(StreamHeader(RankInfo("cost", rank, RANKS, rank, "host", "a", 1_000), known))
        amax = np.random.default_rng(rank).lognormal(0, 0.3, (TENSORS, STEPS))
        columns = {name: np.full(amax.shape, value) for name, value in usual.items()} | {"amax": amax}
        ranges = RangeRows(steps, np.arange(TENSORS), columns)
        loss = SeriesRows("loss", steps, np.linspace(2, 1, STEPS))
        store.send(Batch("cost", rank, "a", 0, wire.catalogue_digest(known), ranges, (loss,), ()))


def _look(store: Store) -> float:
    with store.queries.read() as reader:
        run = reader.run(reader.run_ids()[0])
        assert run is not None
        began_s = time.perf_counter()
        found = diagnose(run)
        assert not found.failed
        return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
