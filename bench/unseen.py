"""Trainings by somebody who had not read the rules, and what Rangewatch says of them.

    python bench/unseen.py [--only PATTERN ...] [--folder bench/held_out/28] [--full]

Each script of `unseen_scripts/` is run as a user would run it: a process of its own, or two gloo ranks, with the real
agent at its default options (but for its budget, so that a busy machine changes nothing) and one real server. The
diagnosis is asked for at every 25th step and at the end, and is held against what the script's author expected
(`EXPECT`; in words in its docstring). 38 have a fault planted, one diverges by itself, 18 are healthy though they look
odd.

A line a script. Right: cause, place, step and rank of the first finding are among those expected, its advice fits, no
advice of any finding is one that was called wrong, nothing above info was said before the fault, and what was said
first is still the root at the end or has become a consequence of it. Weak: all of that, but no advice that fits.
Healthy ones are right where nothing above info is said at any time. `extra`, findings beside the first one, are shown
and not counted. The last line is JSON.

What the figures are worth. Expectations were written before their author had read the rules. After first answers three
were judged anew, from wrong to right: `nerf_srgb`, `ranks_forgotten_head`, and `ok_pinn_switch`, which had diverged and
was split into itself and `lbfgs_diverges`. First measured on 2026-11-23, at cc81f90: of the 39 with a fault 11 right, 5
weak, 23 wrong (of the 38 planted ones 10, 5 and 23); of the 18 healthy ones 14 quiet, 3 with an alarm, and one that
`attach` did not let start. 19 expectations accept several causes, three of them also that none is named, and advice is
matched by patterns: "right" is somewhat kind. Each script is one model with one seed, two ranks at most, on a CPU, so
that one more or less means little; and which faults there are was one author's choice, so that the share is no share
of the faults there are in the field.

Only those first figures are held out. Rules have been mended since by what these scripts showed, which makes them tests
like those of `tests/faults`. To measure again have new ones written, by somebody who has not read the rules; and never
change an expectation here because of what was said.

`held_out/` has more such sets, `--folder bench/held_out/28`: each was written by another author, committed before its
first run and measured once with the rules of its time, and is a test since. What each showed, script by script, and
what the figures are worth: bench/README.md, "Held-out trainings".
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.conftest import Runs
from tests.faults.verdict import EVERY, OF_NOW, ORIGINS, WARNINGS, Finding, is_same, remedies

from diagnosis import patient

SCRIPTS = Path(__file__).parent / "unseen_scripts"
TIME_LIMIT_S = 400.0  # of a script; the longest takes a tenth of it on an idle machine
NO_CAUSE = "(none)"
CAUSES = {
    "replica_mismatch": "replicas", "rank_died": "crash", "rank_failed": "crash", "unchanged_weights": "optimizer",
    "dead_activation": "dead_units", "dead_expert": "dead_units", "expert_collapse": "dead_units",
}  # fmt: skip
"""What the rules say by their names alone, which give neither `cause_class` nor `origin`."""

SYNONYMS = {
    "loss": "forward_arithmetic", "attention": "forward_arithmetic", "frozen": "no_gradient",
    "gradients_kept": "optimizer", "hardware": "weight",
}  # fmt: skip
"""Classes of cause of some authors, whose brief named them, and what the rules call these: either will do. Set down
after sets 35 and 37 had been measured, and before 36, 38 and 39; bench/README.md has both counts."""

PLACE_WITHIN = frozenset({"40", "41", "42", "43"})
"""Sets whose authors were told that the name of the place must match their pattern, and wrote a part of it: it is
searched for there. Set down after they had been measured; bench/README.md has both counts."""

NO_FITTING_ADVICE = "no fitting advice"
Grade = Literal["right", "weak", "wrong"]
Polls = Sequence[tuple[int, Mapping[str, Any]]]
"""The diagnosis as it was before a step."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """A script's `EXPECT`. `cause`: any of these, `NO_CAUSE` where it is enough that none is named. `step`: the first
    and the last that will do. `place`: the whole name of the tensor, as a pattern. `least`: the severity from which on
    findings count. `right`: a pattern of which the first finding's advice must have a match; `wrong`: patterns of which
    no advice may have one. None and "": anything will do.
    """

    cause: Sequence[str] = ()
    step: tuple[int, int] | None = None
    place: str | None = None
    rank: int | None = None
    ranks: int = 1
    healthy: bool = False
    least: Literal["warning", "info"] = "warning"
    right: str = ""
    wrong: Sequence[str] = ()
    is_place_within: bool = False

    def text(self) -> str:
        """In a table."""
        if self.healthy:
            return "healthy"
        step = "" if self.step is None else f" @{self.step[0]}"
        return f"{'|'.join(self.cause)}{step}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`reasons`: what is not as expected, by what it is, in words. `extra`: rules of findings beside the first."""

    grade: Grade
    said: str
    reasons: Mapping[str, str]
    extra: tuple[str, ...] = ()

    def text(self) -> str:
        """In a table."""
        because = [f"{name} {text}".rstrip() for name, text in self.reasons.items()]
        return "; ".join([*because, *([f"extra {', '.join(self.extra)}"] if self.extra else [])])


def main() -> None:
    """Print the table, and as its last line the totals as JSON."""
    options = _options()
    scripts = sorted(options.folder.glob("*.py"))
    paths = [each for each in scripts if any(fnmatch.fnmatch(each.stem, name) for name in options.only)]
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        runs = Runs(Path(folder))
        try:
            verdicts = list(each_script(runs, paths, Path(folder), options.full))
        finally:
            runs.server.stop()
    print(json.dumps(totals(verdicts)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="scripts of these names: 'ok_*'")
    parser.add_argument("--folder", type=Path, default=SCRIPTS, metavar="DIR", help="of the scripts")
    parser.add_argument("--full", action="store_true", help="all that the findings say, and what each script printed")
    return parser.parse_args()


def each_script(runs: Runs, paths: Sequence[Path], folder: Path, is_full: bool) -> Iterator[tuple[Expected, Verdict]]:
    """Train, ask and judge, one after another, each printed as it is known."""
    print(f"{'script':<24} {'expected':<44} {'said (rule, cause, step, rank, tensor)':<62} verdict")
    for path in paths:
        expected, began_s = read(path), time.monotonic()
        log = folder / f"{path.stem}.log"
        statuses = train(runs.url, path, expected.ranks, log, folder)
        trained_s = time.monotonic() - began_s
        verdict, findings = ask(runs, path.stem, expected, statuses, log)
        ended = f"{trained_s:.0f} s" + (f", exit status {max(statuses, key=abs)}" if any(statuses) else "")
        line = f"{path.stem:<24} {expected.text():<44} {verdict.said:<62} {verdict.grade:<5}"
        print(f"{line} {verdict.text()} [{ended}]", flush=True)
        if is_full:
            print("\n".join([*map(text_of, findings), log.read_text(errors="replace")]), flush=True)
        yield expected, verdict


def read(path: Path) -> Expected:
    """What its author expected, without running it. Raises `ValueError` where nothing is said."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "EXPECT":
            said = ast.literal_eval(node.value)
            return Expected(**said, is_place_within=path.parent.name in PLACE_WITHIN)
    raise ValueError(f"{path} has no EXPECT")


def train(url: str, path: Path, ranks: int, log: Path, spool: Path) -> list[int]:
    """Run it to its end: the exit status of each rank. `log` gets what they print."""
    usual = os.environ | {
        "RANGEWATCH_URL": url, "RANGEWATCH_RUN": path.stem, "RANGEWATCH_BUDGET_PERCENT": "100",
        "RANGEWATCH_SPOOL_DIR": str(spool), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    deadline_s = time.monotonic() + TIME_LIMIT_S
    with log.open("w") as output:
        started = [
            subprocess.Popen(
                [sys.executable, str(path)], stdout=output, stderr=subprocess.STDOUT,
                env=usual | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
            )
            for rank in range(ranks)
        ]  # fmt: skip
        return [_status(each, deadline_s) for each in started]


def _status(process: subprocess.Popen[bytes], deadline_s: float) -> int:
    try:
        return process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def ask(
    runs: Runs, run: str, expected: Expected, statuses: Sequence[int], log: Path
) -> tuple[Verdict, Sequence[Finding]]:
    """How the diagnosis fares, and its findings at the end."""
    try:
        asked = patient(runs.ask(run))
    except KeyError:
        last = (log.read_text(errors="replace").splitlines() or [""])[-1]
        return Verdict("wrong", "nothing", {"no run": repr(last[:200])}), ()
    end = asked(None)
    polls = [(stop, asked(stop)) for stop in range(EVERY, end["stop"], EVERY)]
    return judged(expected, end, polls, is_ended_well=not any(statuses)), end["findings"]


def judged(expected: Expected, end: Mapping[str, Any], polls: Polls, is_ended_well: bool = True) -> Verdict:
    """By the answer at the end and those before."""
    findings = _counted(end, expected.least)
    reasons = (
        _of_healthy(findings, polls, is_ended_well) if expected.healthy else _of_planted(expected, findings, polls)
    )
    if end["failed"]:
        reasons["a rule failed"] = str(end["failed"])
    grade: Grade = "right" if not reasons else "weak" if set(reasons) == {NO_FITTING_ADVICE} else "wrong"
    said = _line(findings[0]) if findings else "nothing"
    return Verdict(grade, said, reasons, tuple(each["rule"] for each in findings[1:]))


def _counted(answer: Mapping[str, Any], least: str) -> list[Finding]:
    return [each for each in answer["findings"] if each["severity"] != "info" or least == "info"]


def _alarms(polls: Polls) -> list[str]:
    return [f"{each['rule']} before step {stop}" for stop, answer in polls for each in _counted(answer, "warning")]


def _of_healthy(findings: Sequence[Finding], polls: Polls, is_ended_well: bool) -> dict[str, str]:
    alarms = [*_alarms(polls), *(f"{each['rule']} at the end" for each in findings)]
    reasons = {"alarm": ", ".join(alarms[:3])} if alarms else {}
    return reasons if is_ended_well else reasons | {"not trained": "to its end"}


def _of_planted(expected: Expected, findings: Sequence[Finding], polls: Polls) -> dict[str, str]:
    onset = 0 if expected.step is None else expected.step[0]
    early = _alarms([each for each in polls if each[0] <= onset])
    reasons = {"early": ", ".join(early[:3])} if early else {}
    if not findings:
        return reasons | {"nothing said": ""}
    root = findings[0]
    reasons |= _of_root(expected, root)
    against = [each for finding in findings for each in remedies(finding) if _matches(expected.wrong, each)]
    if against:
        reasons["wrong advice"] = repr(against[0][:90])
    if expected.right and not _matches([expected.right], " ".join(remedies(root))):
        reasons[NO_FITTING_ADVICE] = ""
    first = _first([each for each in polls if each[0] > onset], expected.least)
    if first is not None and not is_same(first, root):
        reasons["another root at first"] = _line(first)
    return reasons


def _of_root(expected: Expected, root: Finding) -> dict[str, str]:
    """What is wrong with what it says of cause, place, step and rank."""
    reasons = {}
    if cause_of(root) not in {*expected.cause, *(SYNONYMS.get(each) for each in expected.cause)}:
        reasons["cause"] = cause_of(root)
    names = (root["tensor"] or "", str(root["facts"].get("where", "")))
    if expected.place is not None and not any(_is_place(expected, each) for each in names):
        reasons["place"] = names[0] or names[1] or "unknown"
    if expected.step is not None and root["rule"] not in OF_NOW:
        first, last = expected.step
        if root["step"] is None or not first <= root["step"] <= last:
            reasons["step"] = str(root["step"])
    if expected.rank is not None and root["rank"] != expected.rank:
        reasons["rank"] = str(root["rank"])
    return reasons


def _is_place(expected: Expected, name: str) -> bool:
    match = re.search if expected.is_place_within else re.fullmatch
    return bool(match(expected.place or "", name))


def cause_of(finding: Finding) -> str:
    """The class of cause that a finding names: of `tests.faults.fault.Cause`, or `NO_CAUSE`."""
    details = finding["facts"]
    if details.get("cause_class"):
        return str(details["cause_class"])
    if details.get("cause") == "masked":
        return "mask"
    if finding["rule"] in CAUSES:
        return CAUSES[finding["rule"]]
    return ORIGINS.get(str(details.get("origin")), (NO_CAUSE,))[0]


def _matches(patterns: Sequence[str], text: str) -> bool:
    return any(re.search(each, text) for each in patterns)


def _first(polls: Polls, least: str) -> Finding | None:
    """What was said first, warnings of an overflow to come apart: those are meant to give way to it."""
    counted = (_counted(answer, least) for _, answer in polls)
    return next((each[0] for each in counted if each and each[0]["rule"] not in WARNINGS), None)


def _line(finding: Finding) -> str:
    place = finding["tensor"] or "-"
    return f"{finding['rule']}, {cause_of(finding)}, {finding['step']}, {finding['rank']}, {place}"


def text_of(finding: Finding) -> str:
    """All that it says."""
    lines = [f"  {finding['severity']}: {finding['summary']}"]
    for name in ("evidence", "path", "consequences"):
        lines += [f"      {name}: {each}" for each in finding[name]]
    return "\n".join([*lines, *(f"      try: {each}" for each in remedies(finding))])


def totals(verdicts: Sequence[tuple[Expected, Verdict]]) -> dict[str, Any]:
    """How many of all, and how often each reason stood against one."""
    planted = [verdict for expected, verdict in verdicts if not expected.healthy]
    healthy = [verdict for expected, verdict in verdicts if expected.healthy]
    grades = collections.Counter(each.grade for each in planted)
    reasons = collections.Counter(name for _, each in verdicts for name in each.reasons)
    return {
        "planted": len(planted), "right": grades["right"], "weak": grades["weak"], "wrong": grades["wrong"],
        "healthy": len(healthy), "quiet": sum(each.grade == "right" for each in healthy),
        "reasons": dict(reasons.most_common()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
