"""What it costs the server to apply all rules to a run of many ranks, as it does while the run is live.

    python bench/rules.py [--ranks 1024] [--tensors 64] [--mesh] [--steps 256] [--only PATTERN] [--profile RULE]

A run of that size is written through the real writer, with series, collectives, GPU samples and events of all ranks;
copies of it go on healthy, with a NaN on one rank, with a straggler, with an exploding gradient. After every 8 more
steps the rules are applied as the server's evaluator does, dear ones at times. Processor time of the thread that does:
the first time, with nothing in the reader's cache and all rules due, and the later ones; by rule (what several rules
read counts for the first of them). With `--memory` the most that Python and numpy hold more while all rules are
applied, by tracemalloc. `--mesh` once and not once, one after the other, has what the mesh costs.

Predicted before measuring: at 1,024 ranks a later evaluation takes 150 ms in the mean, whatever is wrong.
"""

from __future__ import annotations

import argparse
import cProfile
import fnmatch
import json
import pstats
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from load.large_run import TROUBLES, LargeRun, Trouble
from rangewatch_server import rules
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.query.reader import Queries
from rangewatch_server.rules.diagnosis import Diagnosis, RulePace, diagnose
from rangewatch_server.store.engine import open_database

MORE_STEPS, ROUNDS = 8, 9  # 72: one more tile of each rank is folded meanwhile
LIVE_S = 3_600.0  # the writing takes longer than a rank may be silent
MIB = 1 << 20


def main() -> None:
    """Print a table for each state of the run, and as the last line JSON."""
    options = parse_options()
    cases = [None, *TROUBLES]
    results = {}
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        run = LargeRun(options.ranks, options.tensors, has_mesh=options.mesh)
        on_mesh = "-mesh" if options.mesh else ""
        name = (
            f"{options.ranks}x{options.tensors}x{options.steps}{on_mesh}-{run.digest[:8]}.db"  # statistics become more
        )
        base = Path(options.keep or folder) / name
        build(base, run, options.steps)
        for number, case in enumerate(cases):
            state = case or "healthy"
            if not fnmatch.fnmatch(state, options.only):
                continue
            path = Path(folder) / f"case{number}.db"
            shutil.copy(base, path)
            results[state] = measured(path, run, options, Trouble(case, options.steps + MORE_STEPS + 4), state)
            for each in Path(folder).glob(f"{path.name}*"):
                each.unlink()
    size = {"ranks": options.ranks, "tensors": options.tensors, "mesh": options.mesh, "cases": results}
    print(json.dumps({"benchmark": "rules", **size}))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--steps", type=int, default=256, help="before the first evaluation")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of 8 more steps, with an evaluation after each")
    parser.add_argument("--mesh", action="store_true", help="ranks stand on a mesh, and say what is compared along it")
    parser.add_argument("--only", default="*", help="a pattern of the states: healthy, NaN on one rank, ...")
    parser.add_argument("--keep", help="a folder for the run before anything goes wrong, for the next time")
    parser.add_argument("--profile", help="a rule, or `all`: where its time goes, by function")
    parser.add_argument("--memory", action="store_true", help="measure memory as well, which takes as long again")
    return parser.parse_args()


def build(path: Path, run: LargeRun, steps: int) -> None:
    """The run before anything goes wrong. `run` goes on from there."""
    if path.exists():
        run.step, run.sequence = steps, steps // 64
        return
    began_s = time.perf_counter()
    with _writing(path) as (writer, _):
        run.open(writer)
        for _ in range(steps // 64):
            run.send(writer, 64)
    sys.stderr.write(f"built {path.name} in {time.perf_counter() - began_s:.0f} s\n")


@contextmanager
def _writing(path: Path) -> Iterator[tuple[Writer, Any]]:
    engines = open_database(f"sqlite:///{path}")
    writer = Writer(engines)
    writer.start()
    try:
        yield writer, engines
    finally:
        writer.stop()
        engines.dispose()


def measured(path: Path, run: LargeRun, options: argparse.Namespace, trouble: Trouble, name: str) -> dict[str, Any]:
    """The costs of one state of the run; `run` is as it was."""
    at = run.step, run.sequence
    with _writing(path) as (writer, engines):
        queries = Queries(engines.reader, LIVE_S, writer.merged)
        run.send(writer, MORE_STEPS)
        evaluated(queries, RulePace())  # imports and compiled statements are the process's, not the run's
        pace = RulePace()
        first, _ = evaluated(queries := Queries(engines.reader, LIVE_S, writer.merged), pace)
        later = []
        for _ in range(options.rounds):
            run.send(writer, MORE_STEPS, trouble)
            later.append(evaluated(queries, pace)[0])
        whole_ms, whole = evaluated(queries, RulePace())
        if options.profile:
            run.send(writer, MORE_STEPS, trouble)
            profile(queries, options.profile)
        peak_mib = None
        if options.memory:
            run.send(writer, MORE_STEPS, trouble)
            peak_mib = round(peak_bytes(queries) / MIB, 1)
    run.step, run.sequence = at
    looks = [sum(ms.values()) for ms in later]
    print(
        f"\n{name}: first {sum(first.values()):.0f} ms; later mean {np.mean(looks):.0f}, "
        f"median {np.median(looks):.0f}, most {max(looks):.0f} ms; all rules at once {sum(whole_ms.values()):.0f} ms"
    )
    print(f"  {'':<28}{'first':>9}{'mean':>9}{'applied':>9}{'each time':>11}")
    for rule in sorted(first, key=lambda rule: -sum(ms.get(rule, 0.0) for ms in later)):
        spent = [ms[rule] for ms in later if rule in ms]
        each_ms = float(np.median(spent)) if spent else float("nan")
        if max(first[rule], *spent, 0.0) >= 1:
            mean_ms = sum(spent) / len(later)
            print(f"  {rule:<28}{first[rule]:>9.1f}{mean_ms:>9.1f}{f'{len(spent)}/{len(later)}':>9}{each_ms:>11.1f}")
    findings = [f"{each.rule}: {each.summary[:150]}" for each in whole.findings]
    print("  ", "\n   ".join(findings) or "no findings", flush=True)
    if peak_mib is not None:
        print(f"   memory: {peak_mib} MiB", flush=True)
    return {
        "first_ms": round(sum(first.values()), 1), "later_mean_ms": round(float(np.mean(looks)), 1),
        "later_median_ms": round(float(np.median(looks)), 1), "later_most_ms": round(max(looks), 1),
        "all_rules_ms": round(sum(whole_ms.values()), 1), "peak_mib": peak_mib, "findings": len(findings),
    }  # fmt: skip


def evaluated(queries: Queries, pace: RulePace) -> tuple[dict[str, float], Diagnosis]:
    """Processor milliseconds by rule that was due, "open" for the run itself, "join" for the rest; the findings."""
    spent: dict[str, float] = {}
    began_s = time.thread_time()
    with queries.read() as reader:
        run = reader.run(reader.run_ids()[0])
        assert run is not None
        opened_s = time.thread_time()
        diagnosis = diagnose(run, None, None, [_timed(rule, spent) for rule in rules.ALL], pace)
        whole_s = time.thread_time() - opened_s
    assert not diagnosis.failed, diagnosis.failed
    join_ms = 1e3 * whole_s - sum(spent.values())
    return {"open": 1e3 * (opened_s - began_s)} | spent | {"join": join_ms}, diagnosis


def _timed(rule: rules.Rule, spent: dict[str, float]) -> rules.Rule:
    def check(evidence: Any, limits: Any) -> list[rules.Finding]:
        began_s = time.thread_time()
        try:
            return list(rule.check(evidence, limits))
        finally:
            spent[rule.name] = 1e3 * (time.thread_time() - began_s)

    return msgspec.structs.replace(rule, check=check)


def profile(queries: Queries, name: str) -> None:
    """Print where the time of one rule, or of all, goes."""
    profiler = cProfile.Profile()
    chosen = [each for each in rules.ALL if name in (each.name, "all")]
    with queries.read() as reader:
        profiler.enable()
        run = reader.run(reader.run_ids()[0])
        assert run is not None
        diagnose(run, None, None, chosen)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)


def peak_bytes(queries: Queries) -> int:
    """The most that one evaluation holds beyond what was held before it."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        evaluated(queries, RulePace())
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main()
