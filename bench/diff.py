"""Planted differences and equal pairs of runs, and what `rangewatch diff` says of them.

    python bench/diff.py [--only PATTERN ...] [--planted | --equal | --permuted] [--sketches] [--quick] [--full]

Forty pairs of small trainings of which one has something planted, and fifty that are equal but for how they were
computed: one process again, compiled, in bfloat16, or over two gloo ranks by FSDP2, tensor or pipeline parallelism
(`diff_trainings/cases.py`). They are trained with the real agent and one real server; then the command is asked, with
the tolerance that its documentation names for such a pair. Right is the first module and the first step of a planted
one, and an exit status of 0 for an equal one. `--only 'tp2-*'`: pairs of these names. `--sketches`: all trainings have
sketches at each step. `--permuted`: 16 other planted pairs, in which elements of a weight change places, so that its
statistics stay what they are.

What the figures are worth: the cases were written before the command was tried on them, by somebody who knows how it
works. One model, eight steps, on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diff_trainings.cases import EQUAL, KINDS, PERMUTED, PLANTED, Planted
from rangewatch.commands import diff as command
from servers.process import Server

RANKS_PROGRAM = Path(__file__).parent / "diff_trainings" / "ranks.py"
AT_ONCE = 32
"""Trainings in one start of the ranks."""
QUICK = ("same/output*", "tp2-fp32/output*", "fsdp2-fp32 1", "same 1")
WAYS = ("one eager", "fsdp2 eager", "tp2 eager", "pp2 eager", "one compiled")
NOTHING = "none 1 none 0"


def main() -> None:
    """Print a line a pair, and as its last line the totals as JSON."""
    options = _options()
    cases = PERMUTED if options.permuted else () if options.equal else PLANTED
    planted = [each for each in cases if _is_wanted(each.name, options.only)]
    equal = [each for each in EQUAL if _is_wanted(_name(*each), options.only)]
    equal = [] if options.planted or options.permuted else equal
    if options.sketches:
        os.environ["RANGEWATCH_SKETCH_EVERY"] = "1"
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        os.environ |= {"RANGEWATCH_SPOOL_DIR": folder, "RANGEWATCH_WATCHER": "0"}
        with Server(Path(folder) / "diff.db") as server:
            right, quiet = tried(server.url, planted, equal, options.full)
    result = {"planted": len(right), "right": sum(right), "equal": len(quiet), "quiet": sum(quiet)}
    print(json.dumps({"benchmark": "diff", "result": result | {"took_s": round(time.monotonic() - began_s)}}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="pairs of these names: 'tp2-*'")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--planted", action="store_true", help="these alone")
    which.add_argument("--equal", action="store_true", help="these alone")
    which.add_argument("--permuted", action="store_true", help="what changes places, alone")
    parser.add_argument("--sketches", action="store_true", help="attach(sketch_every=1)")
    parser.add_argument("--full", action="store_true", help="all that the command prints")
    parser.add_argument("--quick", action="store_true", help="four pairs: whether it runs at all")
    options = parser.parse_args()
    if options.quick:
        options.only = QUICK
    return options


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, each) for each in patterns)


def _name(kind: str, seed: int) -> str:
    return f"{kind} {seed}"


def _of_planted(case: Planted) -> tuple[str, str]:
    kind = KINDS[case.kind]
    planted = f"{kind.other} {case.how} {case.factor} {case.place} {case.step} {case.seed}"
    return f"{kind.reference} {NOTHING} {case.seed}", planted


def _of_equal(kind: str, seed: int) -> tuple[str, str]:
    """Of one program again the step from which nothing is planted is another: runs have names of their own."""
    reference, other, _ = KINDS[kind]
    again = NOTHING if other != reference else "none 1 none 1"
    return f"{reference} {NOTHING} {seed}", f"{other} {again} {seed}"


def tried(
    url: str, planted: Sequence[Planted], equal: Sequence[tuple[str, int]], is_full: bool
) -> tuple[list[bool], list[bool]]:
    """Whether each planted pair was right, and each equal one quiet. Raises `SystemExit` with what a rank said that
    failed.
    """
    right: list[bool] = []
    quiet: list[bool] = []
    references = [_of_planted(each)[0] for each in planted] + [_of_equal(*each)[0] for each in equal]
    _train(url, references)
    for way in WAYS:
        own = [each for each in planted if way == _way(_of_planted(each)[1])]
        own_equal = [each for each in equal if way == _way(_of_equal(*each)[1])]
        _train(url, [_of_planted(each)[1] for each in own] + [_of_equal(*each)[1] for each in own_equal])
        right += [_is_right(url, each, is_full) for each in own]
        quiet += [_is_quiet(url, *each, is_full) for each in own_equal]
    return right, quiet


def _way(name: str) -> str:
    """Layout and mode: what is trained in one start of the ranks."""
    layout, _, mode, *_ = name.split()
    return f"{layout} {mode}"


def _train(url: str, names: Iterable[str]) -> None:
    runs = list(dict.fromkeys(names))
    for first in range(0, len(runs), AT_ONCE):
        _launch(url, 1 if runs[0].startswith("one") else 2, runs[first : first + AT_ONCE])


def _launch(url: str, ranks: int, runs: Sequence[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = os.environ | {"OMP_NUM_THREADS": "1", "RANGEWATCH_COLLECT": "environment"}
    if ranks > 1:
        usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen(
            [sys.executable, str(RANKS_PROGRAM), url, *runs], stderr=subprocess.PIPE, text=True,
            env=usual | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    errors = [each.communicate()[1] for each in started]
    for each, text in zip(started, errors, strict=True):
        if each.returncode:
            raise SystemExit(text)


def asked(url: str, one: str, other: str, tolerance: float | None) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of the command."""
    given = [] if tolerance is None else ["--tolerance", str(tolerance)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = command.main([one, other, *given, "--json", "--ignore-settings", "--url", url])
    return status, json.loads(out.getvalue())


def _is_right(url: str, case: Planted, is_full: bool) -> bool:
    status, found = asked(url, *_of_planted(case), KINDS[case.kind].tolerance)
    first = found["tensors"][0] if found["tensors"] else {"fqn": "", "kind": "", "label": "nothing"}
    is_right = status == 1 and found["step"] == case.shows_at and _is_of(case, first)
    print(f"{case.name:<40} {'right' if is_right else 'WRONG'}  step {found['step']}, {first['label']}", flush=True)
    _print_all(found, is_full)
    return is_right


def _is_of(case: Planted, tensor: dict[str, Any]) -> bool:
    """Whether a tensor is of the module, or its parameter. Other data come in by whatever holds the first one, too."""
    fqn = tensor["fqn"]
    if case.how == "data" and tensor["kind"] == "input":
        return not fqn or f"{case.place}.".startswith(f"{fqn}.")
    return fqn == case.place or fqn.startswith(f"{case.place}.")


def _is_quiet(url: str, kind: str, seed: int, is_full: bool) -> bool:
    status, found = asked(url, *_of_equal(kind, seed), KINDS[kind].tolerance)
    is_quiet = status == 0 and found["matched"] > 20
    said = "nothing" if is_quiet else f"step {found['step']}, " + ", ".join(e["label"] for e in found["tensors"][:4])
    print(f"{_name(kind, seed):<40} {'quiet' if is_quiet else 'CLAIM'}  {said}", flush=True)
    _print_all(found, is_full)
    return is_quiet


def _print_all(found: dict[str, Any], is_full: bool) -> None:
    for each in found["tensors"][:12] if is_full else ():
        bits, allowed = each["difference_bits"], each["allowed_bits"]
        print(f"    {each['label']:<36} {each['amax']} {each['other_amax']} {bits} of {allowed}")
    if is_full and found["loss"]:
        print(f"    loss {found['loss']}")


if __name__ == "__main__":
    main()
