"""Trainings that fail in emulated low precision, and whether Rangewatch warns before their loss moves.

    python bench/low_precision.py [--only PATTERN ...] [--declare] [--healthy] [--full]

Each case of `low_precision_trainings/cases.py` is a small training on this CPU whose operands are rounded to a smaller
format and back, after a public report. Its twin of the same seed rounds nothing. **The loss moves** at the first of 5
steps in a row at which it differs by more than a tenth from the twin's at the same step, or where it is not finite. A
case passes where, of the steps before that one alone, a finding above info names a tensor of the layers that are
rounded, or the scheduled what-if readings say of the format in use that such tensors do not survive there, and of no
more others. Real agent (every kind, `whatif_every=10`, `weight_every=10`; without `--declare` it is not told what is
rounded), one real server.

`--healthy`: 50 trainings that are well, in which a finding above info is an alarm. What the figures are worth: cases
and rules have one author; the cases were committed before the rules.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tests.faults.conftest import Runs

import rangewatch
from low_precision_trainings.cases import CASES, Case
from low_precision_trainings.healthy import HEALTHY
from low_precision_trainings.quantize import Recipe, formats_of

BAND, LASTING = 0.1, 5


def main() -> None:
    """Print a line a training, and as the last line the totals as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="trainings of these names")
    parser.add_argument("--declare", action="store_true", help="tell the agent which formats are in use")
    parser.add_argument("--healthy", action="store_true", help="trainings in which nothing is wrong")
    parser.add_argument("--full", action="store_true", help="all that the findings say")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["RANGEWATCH_WATCHER"] = "0"
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        os.environ["RANGEWATCH_SPOOL_DIR"] = folder
        runs = Runs(Path(folder))
        try:
            verdicts = list((healthy if options.healthy else failing)(runs, options))
        finally:
            runs.server.stop()
    kind, said = ("healthy", "quiet") if options.healthy else ("failing", "warned")
    print(json.dumps({kind: len(verdicts), said: sum(verdicts), "declared": options.declare}))


def failing(runs: Runs, options: argparse.Namespace) -> Iterator[bool]:
    """Whether each case passes."""
    print(f"{'case':<44} moves  named at  by")
    for case in CASES:
        if not any(fnmatch.fnmatch(case.name, each) for each in options.only):
            continue
        twin = list(case.make(case.seed, Recipe()).losses(case.steps))
        training = case.make(case.seed, case.recipe)
        losses = _watched(runs.url, case.name, training, case.steps, declare=options.declare)
        moved = moves_at(twin, losses)
        until = case.steps if moved is None else moved
        findings = [each for each in runs.ask(case.name)(until)["findings"] if each["severity"] != "info"]
        verdict = _by_finding(findings, case) or _by_whatif(runs, case, until)
        others = [each for each in findings if not _names(each, case)]
        also = f"; also {', '.join(map(_line, others))}" if others else ""
        print(f"{case.name:<44} {_step(moved):>5}  {verdict or 'nothing'}{also}", flush=True)
        if options.full:
            print("\n".join(f"    {each['summary']}" for each in findings), flush=True)
        yield verdict is not None and moved is not None


def healthy(runs: Runs, options: argparse.Namespace) -> Iterator[bool]:
    """Whether nothing above info is said of each: at every 50th step, and at the end."""
    for each in HEALTHY:
        if not any(fnmatch.fnmatch(each.name, pattern) for pattern in options.only):
            continue
        losses = _watched(runs.url, each.name, each.make(each.seed), each.steps, declare=options.declare)
        alarms = {}
        for stop in (*range(50, each.steps, 50), None):
            for finding in runs.ask(each.name)(stop)["findings"]:
                if finding["severity"] != "info":
                    alarms.setdefault(finding["rule"], finding)
        said = ", ".join(map(_line, alarms.values())) or "quiet"
        print(f"{each.name:<40} {losses[0]:.3g} to {losses[-1]:.3g}  {said}", flush=True)
        if options.full:
            print("\n".join(f"    {alarm['summary']}" for alarm in alarms.values()), flush=True)
        yield not alarms


def _watched(url: str, name: str, training: Any, steps: int, *, declare: bool) -> list[float]:
    told: dict[str, Any] = {"formats": formats_of(training.model)}
    with warnings.catch_warnings(), rangewatch.attach(
        training.model, training.optimizer, scaler=getattr(training, "scaler", None), url=url, run=name,
        level="frames", whatif_every=10, weight_every=10, budget_percent=100, quiet=True, collect=(),
        **(told if declare else {}),
    ) as handle:  # fmt: skip
        warnings.simplefilter("ignore")
        losses = []
        for loss in training.losses(steps):
            handle.log(loss=loss)
            losses.append(loss)
    return losses


def moves_at(twin: Sequence[float], losses: Sequence[float]) -> int | None:
    """The first of `LASTING` steps in a row out of the band, or the first that is not finite; None: there is none."""
    in_a_row = 0
    for step, (usual, loss) in enumerate(zip(twin, losses, strict=True)):
        if not math.isfinite(loss):
            return step - in_a_row
        in_a_row = in_a_row + 1 if abs(loss - usual) > BAND * abs(usual) else 0
        if in_a_row == LASTING:
            return step - LASTING + 1
    return None


def _by_finding(findings: Sequence[Mapping[str, Any]], case: Case) -> str | None:
    return next((f"finding: {_line(each)}" for each in findings if _names(each, case)), None)


def _names(finding: Mapping[str, Any], case: Case) -> bool:
    return re.fullmatch(case.named, finding["tensor"] or "") is not None


def _by_whatif(runs: Runs, case: Case, until: int) -> str | None:
    """What does not survive in the format in use, by kind: those of the case, and no more others."""
    number = runs.number(case.name)
    path = f"/api/v1/runs/{number}/whatif?stop={until}&kind={case.kind}"
    tensors = runs.server.get(path)["tensors"]
    format = case.uses[case.kind].partition("/")[0]
    failing = [each["fqn"] for each in tensors if not each["formats"][format]["survives"]]
    right = [each for each in failing if re.fullmatch(case.named, each)]
    if not right or 2 * len(right) < len(failing):
        return None
    return f"what-if: {right[0]} of {len(failing)} of {len(tensors)} {case.kind}s"


def _line(finding: Mapping[str, Any]) -> str:
    return f"{finding['rule']} {finding['tensor'] or '-'} {finding['step']}"


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)


if __name__ == "__main__":
    main()
