"""Planted faults in real trainings, and what Rangewatch says of them: cause, place, advice, and whether it stays so.

    python bench/diagnosis.py [--seeds 3] [--first-seed 0] [--healthy 80] [--only PATTERN ...] [--scripts]

Each fault of `tests/faults` is trained on this CPU (those of several ranks in gloo processes) with the real agent,
which sends to a server of its own; then the diagnosis is asked for as a user would, at every 25th step and at the end.
What is true is known from what was planted, and from plain hooks. A line a fault: is the cause right (of the small
models, the class), the place (tensor, rank and step), is anything advised that the evidence speaks against, is the
first finding at the end the one that was first when there was one; by how many steps it was warned of; what else was
found. For what is wrong the line below says what was said instead. Healthy trainings are asked about as often; what is
found in them above info is an alarm. At last the rules' own cost: a look at a run of 8 ranks x 300 tensors.

Predicted before measuring: cause and place right, no advice against evidence and the same root in all cases and seeds;
every gradual one warned of by 5 steps or more; no false alarm; a look at 8 ranks x 300 tensors takes under 200 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults import cases
from tests.faults.conftest import Runs
from tests.faults.fault import Fault, Job
from tests.faults.healthy import SCRIPTS, Healthy, Script, healthy, stops
from tests.faults.ranks import launch, run_name
from tests.faults.verdict import LEAD, Ask, judged, lead, same_root, verdict
from tests.server.opened_store import Store

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry
from rangewatch_server.rules.diagnosis import diagnose

STEPS, TENSORS, RANKS, LOOKS = 512, 300, 8, 5
PATIENCE = 5


def main() -> None:
    """Print the table, and as its last line the totals as JSON."""
    options = _options()
    os.environ["RANGEWATCH_WATCHER"] = "0"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        os.environ["RANGEWATCH_SPOOL_DIR"] = folder
        runs = Runs(Path(folder))
        try:
            chosen = [each for each in _chosen(options.scripts) if _is_wanted(each.name, options.only)]
            rows = list(faults(runs, range(options.first_seed, options.first_seed + options.seeds), chosen))
            trained, alarms = false_alarms(runs, options.healthy, options.steps, options.only)
        finally:
            runs.server.stop()
        looked_ms = cost(Path(folder) / "cost.db")
    print(json.dumps(totals(rows) | {"healthy": trained, "false_alarms": alarms, "look_ms": looked_ms}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--healthy", type=int, default=80, help="trainings in which nothing is wrong, scripts first")
    parser.add_argument("--steps", type=int, default=400, help="of each healthy one")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of the faults' names, and the healthy ones'")
    parser.add_argument("--scripts", action="store_true", help="of the faults those alone that are planted in scripts")
    return parser.parse_args()


def _chosen(scripts: bool) -> tuple[Fault, ...]:
    return cases.SCRIPTS if scripts else (*cases.SCRIPTS, *cases.ALL)


def faults(runs: Runs, seeds: Sequence[int], chosen: Sequence[Fault]) -> Iterator[dict[str, Any]]:
    """A row for each fault and seed, printed as it is known."""
    print(f"{'fault':<52} seed  declared cause       cause place advice same  ahead  other findings")
    for seed in seeds:
        for fault in chosen:
            row = one(runs, fault, seed)
            print(_line(row, seed), flush=True)
            yield row


def _line(row: dict[str, Any], seed: int) -> str:
    ahead = row["lead"] or ("never" if row["warned"] else "")
    verdicts = "  ".join(_word(row[each]) for each in ("cause", "place")) + f"  {_word(not row['against'])}  "
    line = f"{row['name']:<52} {seed:>4}  {row['declared']:<20} {verdicts} {_word(row['same'])} {ahead:>6}  "
    line += ", ".join(row["extra"])
    notes = [
        *([f"says: {row['said']}"] if not (row["cause"] and row["place"]) else []),
        *([f"said first: {row['first']}"] if not row["same"] else []),
        *([f"against its evidence: {', '.join(row['against'])}"] if row["against"] else []),
        *([f"before the fault: {', '.join(row['early'])}"] if row["early"] else []),
    ]
    return "\n".join([line.rstrip(), *(f"      {each[:400]}" for each in notes)])


def _word(is_right: bool) -> str:
    return "yes " if is_right else "NO  "


def one(runs: Runs, fault: Fault, seed: int) -> dict[str, Any]:
    """Train it, and ask."""
    job = Job(runs.url, run_name(fault, seed), seed)
    row = {"name": fault.name, "declared": fault.cause or fault.rule or "nothing", "warned": fault.warned, "lead": None}
    try:
        if fault.ranks > 1:
            launch(runs.url, seed, [fault])
        else:
            torch.manual_seed(seed)
            fault.train(job)
        return row | (_of_script if fault in cases.SCRIPTS else _of_model)(fault, job, patient(runs.ask(job.run)))
    except Exception as error:  # noqa: BLE001 - a case that does not run is a failing one, and the others go on
        said = f"{type(error).__name__}: {str(error)[-300:]}"
        wrong = {"cause": False, "place": False, "same": False, "against": (), "extra": (), "early": ()}
        return row | wrong | {"said": said, "first": said}


def patient(ask: Ask) -> Ask:
    """It asks again where a busy machine took too long over the answer."""

    def asked(stop: int | None) -> dict[str, Any]:
        for _ in range(PATIENCE):
            try:
                return ask(stop)
            except AssertionError as error:
                if "time_limit" not in str(error):
                    raise
        return ask(stop)

    return asked


def _of_script(fault: Fault, job: Job, ask: Ask) -> dict[str, Any]:
    return dataclasses.asdict(judged(fault, ask))


def _of_model(fault: Fault, job: Job, ask: Ask) -> dict[str, Any]:
    found = verdict(fault, job.truth, ask)
    ahead = lead(ask, job.truth[0]) if fault.warned and job.truth is not None else None
    said = found.found[0]["summary"] if found.found else "nothing"
    same, first = same_root(fault, ask)
    return {
        "cause": found.is_class_right, "place": found.is_right, "same": same, "lead": ahead,
        "against": (), "said": said, "first": first, "extra": found.extra, "early": (),
    }  # fmt: skip


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of all; the scripts' alone under "scripts"."""
    gradual = [each for each in rows if each["warned"]]
    scripts = {fault.name for fault in cases.SCRIPTS}
    return _counts(rows) | {
        "scripts": _counts([each for each in rows if each["name"] in scripts]),
        "gradual": len(gradual), "warned": sum((each["lead"] or 0) >= LEAD for each in gradual),
        "least_lead": min((each["lead"] or 0 for each in gradual), default=None),
    }  # fmt: skip


def _counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    wrong = ("against", "early")
    right = [
        each for each in rows if each["cause"] and each["place"] and each["same"] and not any(map(each.get, wrong))
    ]
    return {
        "faults": len(rows), "cause": sum(each["cause"] for each in rows), "place": sum(each["place"] for each in rows),
        "against_evidence": sum(bool(each["against"]) for each in rows),
        "same_root": sum(each["same"] for each in rows),
        "early": sum(bool(each["early"]) for each in rows),
        "all_right": len(right), "extra": sum(len(each["extra"]) for each in rows),
    }  # fmt: skip


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, each) for each in patterns)


def false_alarms(runs: Runs, count: int, steps: int, only: Sequence[str]) -> tuple[int, int]:
    """How many healthy trainings, and in how many something above info was found, at any step asked about."""
    models = itertools.islice(healthy(max(0, count - len(SCRIPTS))), count)
    chosen = [each for each in (*SCRIPTS[:count], *models) if _is_wanted(each.name, only)]
    alarms = 0
    for training in chosen:
        loud = _loud(runs, training, steps)
        alarms += bool(loud)
        print(
            f"{training.name}: {'; '.join(f'before step {stop}: {said}' for said, stop in loud.items()) or 'quiet'}",
            flush=True,
        )
    print(f"{len(chosen)} healthy trainings of {steps} steps: {alarms} with a false alarm")
    return len(chosen), alarms


def _loud(runs: Runs, training: Script | Healthy, steps: int) -> dict[str, int | None]:
    """What was said, and before which step first."""
    run = run_name(training, 0) if isinstance(training, Script) else training.name
    try:
        if isinstance(training, Healthy):
            training.train(runs.url, steps)
        elif training.ranks > 1:
            launch(runs.url, 0, [training])
        else:
            training.train(Job(runs.url, run), steps)
    except Exception as error:  # noqa: BLE001
        return {f"{type(error).__name__}: {str(error)[-300:]}": None}
    ask, said = patient(runs.ask(run)), {}
    for stop in stops(steps):
        for each in ask(stop)["findings"]:
            if each["severity"] != "info":
                said.setdefault(f"{each['rule']}: {each['summary'][:200]}", stop)
    return said


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
