"""Whether the product is right on a GPU, and what it costs there: one command each, one report each.

    python3 bench/gpu test [--dry-run] [--out FOLDER] [--only PART ...] [--within-s 570]     # make test-gpu
    python3 bench/gpu bench [...]                                                           # make bench-gpu

It runs from a bare checkout with the machine's own python3, its torch and its numpy; what else is missing comes from
the wheels of `make gpu-wheels`, unpacked into a temporary folder. Each part is a process of its own with a time limit,
and the others go on when it fails. Nothing of the card's settings is touched.

`--dry-run`, where there is no GPU: what Triton's interpreter, a CPU and NVML's double can show, and for each part "not
run: no CUDA device". `--within-s`: seconds for all parts; what no longer fits is said to be not run, and `--only` runs
it in another command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from parts import BENCH, TEST, Part
from report import NO_DEVICE, Result, first_line, write
from wheels import ROOT, missing, unpack

LEAST_S = 15.0
"""Seconds left under which no part is begun."""
PRINTED_CHARACTERS = 6000
PARTS = {"test": TEST, "bench": BENCH}


def main() -> int:
    """0: all that was run was right. 1: something was wrong. 2: nothing could be run."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="rangewatch-gpu-") as name:
        site = Path(name)
        came = unpack(site)
        paths = [site, ROOT / "agent", ROOT / "server", ROOT / "bench", ROOT / "bench/gpu", ROOT]
        sys.path[:0] = [str(path) for path in paths]
        lacking = missing()
        if lacking:
            print(f"{sys.executable} lacks {', '.join(lacking)} ({came}).", file=sys.stderr)
            print(_advice(lacking), file=sys.stderr)
            return 2
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        return run(options)


def _advice(lacking: list[str]) -> str:
    if "torch" in lacking or "numpy" in lacking:
        return "torch and numpy are the machine's own: name another Python with `make test-gpu PYTHON=...`."
    return "`make gpu-wheels` collects what is lacking, where there is a network; copy the folder gpu-wheels/ here."


def run(options: argparse.Namespace) -> int:
    """All parts, and the report after each."""
    options.out.mkdir(parents=True, exist_ok=True)
    began_s, began = time.monotonic(), datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    command = "make test-gpu" if options.what == "test" else "make bench-gpu"
    given = [*(["--dry-run"] if options.dry_run else []), *(["--only", *options.only] if options.only else [])]
    command += f" ARGS='{' '.join(given)}'" if given else ""
    machine, results = dict[str, Any](), list[Result]()
    chosen = [part for part in PARTS[options.what] if part.name in (options.only or [part.name])]
    if chosen[0].name != "environment":
        chosen.insert(0, TEST[0])
    for part in chosen:
        left_s = options.within_s - (time.monotonic() - began_s)
        result = one(part, machine, options, left_s)
        if part.name == "environment":
            machine.update(result.answer.get("figures", {}))
        results.append(_without_device(result, machine))
        write(options.out, command, machine, began, results)
        say(f"{part.name:<16} {results[-1].status} {results[-1].dry_run} ({results[-1].took_s:.0f} s)")
        if part.name == "environment" and not machine.get("card") and not options.dry_run:
            say(f"{first_line(machine)}. --dry-run shows what can be seen without one.")
            return 2
    say(first_line(machine))
    say(f"{options.out / 'report.md'}")
    return int(any(result.is_bad for result in results))


def one(part: Part, machine: dict[str, Any], options: argparse.Namespace, left_s: float) -> Result:
    """A part in a process of its own, or why it was not run."""
    is_dry = options.dry_run and part.name != "environment"
    command = part.dry_command if is_dry else part.command
    if not command:
        return Result(part, NO_DEVICE, "", 0.0, {}, "")
    if not is_dry and part.needs and shutil.which(part.needs) is None:
        return Result(part, f"not run: {part.needs} is not here", "", 0.0, {}, "")
    if left_s < LEAST_S:
        return Result(part, "not run: the seconds of --within-s were used up", "", 0.0, {}, "")
    began_s = time.monotonic()
    limit_s = min(part.limit_s, left_s)
    status, printed = finish(filled(command, options.out), limit_s)
    answer = answer_of(part, options.out, printed)
    outcome = judged(status, limit_s, answer)
    took_s = time.monotonic() - began_s
    if is_dry:
        return Result(part, NO_DEVICE, f"{part.dry_where}: {outcome}", took_s, answer, printed[-PRINTED_CHARACTERS:])
    return Result(part, outcome, "", took_s, answer, printed[-PRINTED_CHARACTERS:])


def _without_device(result: Result, machine: dict[str, Any]) -> Result:
    """Naming the machine is no run on a GPU."""
    if machine.get("card") or result.part.name != "environment":
        return result
    return result._replace(status=NO_DEVICE, dry_run=f"{result.part.dry_where}: {result.status}")


def filled(command: tuple[str, ...], out: Path) -> list[str]:
    """A command's words, begun with this Python where it names no program of its own."""
    words = [word.replace("{out}", str(out)).replace("{python}", sys.executable) for word in command]
    is_python = words[0].endswith(".py") or words[0].startswith("-")
    return [sys.executable, *words] if is_python else words


def finish(command: list[str], limit_s: float) -> tuple[int | None, str]:
    """Its status, None where it ran past the limit, and what it printed. Its own processes end with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        status: int | None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
            process.wait()
        log.seek(0)
        return status, log.read()


def answer_of(part: Part, out: Path, printed: str) -> dict[str, Any]:
    """What the program says of itself, in its last line; nothing where it did not come to that."""
    try:
        if part.read is not None:
            figures = part.read(out, printed)
            return {"figures": figures, "failed": figures.pop("failed", [])}
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return {"notes": [f"no figures: {type(error).__name__}: {error}"]}


def judged(status: int | None, limit_s: float, answer: dict[str, Any]) -> str:
    """`passed` with how much was checked, or `failed` and why."""
    checks = f", {answer['checks']} checks" if "checks" in answer else ""
    if status is None:
        return f"failed: not done after {limit_s:.0f} s"
    if status or answer.get("failed"):
        return (
            f"failed: {len(answer.get('failed', []))} wrong{checks}"
            if answer.get("failed")
            else f"failed: status {status}"
        )
    return f"passed{checks}"


def say(message: str) -> None:
    print(message, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 bench/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=PARTS, help="test: is it right; bench: what it costs")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "test-results" / "gpu", help="folder of the report")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts alone")
    parser.add_argument("--within-s", type=float, help="seconds for all parts together (570; --dry-run: 3600)")
    options = parser.parse_args()
    options.within_s = options.within_s or (3600.0 if options.dry_run else 570.0)
    names = [part.name for part in PARTS[options.what]]
    unknown = [name for name in options.only or [] if name not in names]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names)}")
    options.out = options.out.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())
