"""Runs `rangewatch linkcheck` as a user does, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests import forked

CODE = "import sys; from rangewatch.commands.linkcheck import main; sys.exit(main(sys.argv[1:]))"
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "RANGEWATCH_TOKEN")


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    def result(self) -> dict[str, Any]:
        return json.loads(self.out)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments], env=inherited | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> Ran:
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return Ran(process.returncode, out, err)


class Begun(NamedTuple):
    """A command that runs; `end` waits for it."""

    pid: int
    err: Path
    end: Callable[[], Ran]

    def until(self, said: str) -> None:
        """Wait until it has said so on standard error."""
        while said not in self.err.read_text():
            time.sleep(0.01)


class Forker:
    """Runs commands in forks of a process that has imported torch, which takes longer than most checks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._begun = folder, list[forked.Forked]()

    def begin(self, *arguments: str, prelude: str = "", **environment: str) -> Begun:
        """Start it and do not wait. `prelude`: code that goes before, to set what a user cannot."""
        out, err = (self._folder / f"{len(self._begun)}.{name}" for name in ("out", "err"))
        inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
        with out.open("w") as stdout, err.open("w") as stderr:
            code = ("-c", f"import os, sys\n{prelude}\n{CODE}", *arguments)
            program = forked.rank.start(*code, env=inherited | environment, stdout=stdout, stderr=stderr)
        self._begun.append(program)
        return Begun(program.pid, err, lambda: Ran(program.wait(), out.read_text(), err.read_text()))

    def run(self, *arguments: str, prelude: str = "", **environment: str) -> Ran:
        return self.begin(*arguments, prelude=prelude, **environment).end()

    def close(self) -> None:
        for program in self._begun:
            if program.poll() is None:
                for pid in (*processes_of(program.pid), program.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def processes_of(session_of: int) -> list[int]:
    """All processes below one, by /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, layer = [], [session_of]
    while layer := [pid for pid, parent in parents.items() if parent in layer]:
        found += layer
    return found
