"""Bugs of parallel training on a mesh of real ranks, and what Rangewatch says of them.

    python bench/mesh.py [--only PATTERN ...] [--seeds 3] [--healthy] [--ranks 4] [--full]

Each case of `mesh_trainings/cases.py` is a small language model on four gloo ranks on this CPU, over DDP, HSDP, FSDP2
by tensor parallelism, a pipeline of torch.distributed.pipelining, or tensor, sequence, context or expert parallelism by
hand, with one bug planted; some are made after public reports, which the case names. It is trained with the real agent
(`replica_every=1` and the kind `reduced_grad`, so that the very step is known) and one real server, which is asked for
its diagnosis at the end. A line a case: are the rule, the axis, the parameter, the ranks and the first step of its
first finding right. `--healthy`: the same layouts in fp32, bf16 and fp16 with a scaler, where anything above info is an
alarm.

What the figures are worth: cases and rules have one author, who had both in sight, so that this is a test and no
measurement of what is found of bugs that nobody has seen. 14 steps, one model, ranks of one machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.conftest import Runs

from mesh_trainings.cases import ALL, CASES, ODD, Case
from mesh_trainings.planted import planted

RANKS_PROGRAM = Path(__file__).parent / "mesh_trainings" / "ranks.py"
LAYOUTS = ("ddp", "hsdp", "fsdp1", "fsdp_tp", "tp_hand", "sp_hand", "cp_hand", "ep_hand", "pp")
OF_EIGHT = ("pp_dp_tp", "hsdp_tp")
"""Layouts that have three axes of two ranks each."""
SCALED = ("ddp", "tp_hand", "sp_hand", "cp_hand")
"""A scaler of torch's own decides on each rank by its own gradients: with sharded ones that is a bug by itself."""
HEALTHY = {"fp32": ("none", "noise", "groups", "warmup"), "bf16": ("none", "noise", "warmup"),
           "fp16": ("none", "noise")}  # fmt: skip
"""By precision what is otherwise than usual, and right: gradients off in their last bits, as of kernels that add in no
certain order; parameter groups of unlike rates; a rate that begins at 0 and rises."""
OF_ONE = {"groups": ("ddp",)}
AT_ONCE = 8
"""Trainings in one start of the ranks."""


def main() -> None:
    """Print the table, and as its last line the totals as JSON."""
    options = _options()
    os.environ["RANGEWATCH_WATCHER"] = "0"
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        os.environ["RANGEWATCH_SPOOL_DIR"] = folder
        runs = Runs(Path(folder))
        try:
            found = list(healthy(runs, options) if options.healthy else planted_ones(runs, options))
        finally:
            runs.server.stop()
    right = sum(found)
    print(json.dumps({"healthy" if options.healthy else "planted": len(found), "right": right, "ranks": options.ranks}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="cases of these names: 'pp/*'")
    parser.add_argument("--seeds", type=int, default=1, help="each chooses another step and rank")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--healthy", action="store_true", help="trainings in which nothing is wrong")
    parser.add_argument("--full", action="store_true", help="all that the findings say")
    return parser.parse_args()


def planted_ones(runs: Runs, options: argparse.Namespace) -> Iterator[bool]:
    """A line for each case and seed."""
    print(f"{'case':<34} seed  rule axis param ranks step  said")
    cases = [each for each in CASES if _is_wanted(each.name, options.only) and _is_of(each.layout, options.ranks)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    todo = list(itertools.product(seeds, cases))
    for at in range(0, len(todo), AT_ONCE):
        part = todo[at : at + AT_ONCE]
        names = [f"{case.layout} {case.bug} {seed} fp32" for seed, case in part]
        launch(runs.url, options.ranks, names)
        for name, (seed, case) in zip(names, part, strict=True):
            findings = _above_info(runs, name)
            if not case.rules:
                said = ", ".join(map(_line, findings)) or "nothing"
                print(f"{case.name:<34} {seed:>4}  known not to be seen   {said}", flush=True)
                continue
            verdicts = judged(case, seed, options.ranks, findings)
            words = "  ".join("yes " if each else "NO  " for each in verdicts.values())
            said = _line(findings[0]) if findings else "nothing"
            more = f" (+{len(findings) - 1})" if len(findings) > 1 else ""
            print(f"{case.name:<34} {seed:>4}  {words}  {said}{more}", flush=True)
            if options.full:
                print("\n".join(_text(each) for each in findings), flush=True)
            yield all(verdicts.values())


def healthy(runs: Runs, options: argparse.Namespace) -> Iterator[bool]:
    """A line for each layout, precision and seed."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    here = [each for each in (*LAYOUTS, *OF_EIGHT) if _is_of(each, options.ranks)]
    todo = [
        f"{layout} {variation} {seed} {precision}"
        for seed in seeds
        for precision, variations in HEALTHY.items()
        for variation in variations
        for layout in here
        if _is_wanted(f"{layout}/{precision}/{variation}", options.only) and _can(layout, precision, variation)
    ]
    for at in range(0, len(todo), AT_ONCE):
        part = todo[at : at + AT_ONCE]
        launch(runs.url, options.ranks, part)
        for name in part:
            findings = _above_info(runs, name)
            print(f"{name:<34} {'quiet' if not findings else ', '.join(map(_line, findings))}", flush=True)
            if options.full:
                print("\n".join(_text(each) for each in findings), flush=True)
            yield not findings


def _is_of(layout: str, ranks: int) -> bool:
    """Whether a layout is tried on so many ranks."""
    return (layout in OF_EIGHT) == (ranks == 8)


def _can(layout: str, precision: str, variation: str) -> bool:
    return (precision != "fp16" or layout in SCALED) and (variation not in OF_ONE or layout in OF_ONE[variation])


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, each) for each in patterns)


def launch(url: str, ranks: int, runs: Sequence[str]) -> None:
    """Train them one after another. Raises `SystemExit` with what a rank said that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    usual |= {"OMP_NUM_THREADS": "1", "RANGEWATCH_COLLECT": "environment", "RANGEWATCH_BUDGET_PERCENT": "100"}
    started = [
        subprocess.Popen(
            [sys.executable, str(RANKS_PROGRAM), url, *runs], stderr=subprocess.PIPE, text=True,
            env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    errors = [each.communicate()[1] for each in started]
    for each, text in zip(started, errors, strict=True):
        if each.returncode:
            raise SystemExit(text)


def _above_info(runs: Runs, name: str) -> list[Mapping[str, Any]]:
    answer = runs.ask(name)(None)
    assert not answer["failed"], answer["failed"]
    return [each for each in answer["findings"] if each["severity"] != "info"]


def judged(case: Case, seed: int, ranks: int, findings: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Of the first finding."""
    names = ("rule", "axis", "parameter", "ranks", "step")
    if not findings:
        return dict.fromkeys(names, False)
    found, details = findings[0], findings[0]["facts"]
    since, odd = planted(seed, ranks)
    first = (0 if case.is_from_start else since) + case.first
    axes = details.get("axes") or (["dp"] if case.layout == "ddp" else [])
    return {
        "rule": found["rule"] in case.rules,
        "axis": case.axis is None or any(each.startswith(case.axis) for each in axes),
        "parameter": case.parameter is None or re.fullmatch(case.parameter, found["tensor"] or "") is not None,
        "ranks": _are_ranks(case, odd, found, ranks),
        "step": found["step"] == first,
    }


def _are_ranks(case: Case, odd: int, found: Mapping[str, Any], ranks: int) -> bool:
    details = found["facts"]
    if case.ranks == ODD:
        return found["rank"] == odd
    groups = details.get("groups") or []
    named = {rank for group in groups for rank in group} | set(details.get("ranks") or ())
    named |= {*(details.get("odd_ranks") or ()), *(details.get("majority_ranks") or ())}
    if case.ranks == "line":
        return odd in named and len(named) == 2
    return named == (set(range(ranks)) if case.ranks == ALL else set(case.ranks)) or (
        case.ranks == ALL and not groups and not details.get("ranks") and found["rank"] is None
    )


def _line(finding: Mapping[str, Any]) -> str:
    axes = ",".join(finding["facts"].get("axes") or ())
    return f"{finding['rule']}, {axes or '-'}, {finding['tensor'] or '-'}, rank {finding['rank']}, {finding['step']}"


def _text(finding: Mapping[str, Any]) -> str:
    lines = [f"    {finding['severity']}: {finding['summary']}", *(f"        {each}" for each in finding["evidence"])]
    return "\n".join([*lines, *(f"        consequence: {each}" for each in finding["consequences"])])


if __name__ == "__main__":
    main()
