"""Runs `rangewatch linkcheck` as a user does, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

CODE = "import sys; from rangewatch.linkcheck.command import main; sys.exit(main(sys.argv[1:]))"
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


def run(*arguments: str, **environment: str) -> Ran:
    return finish(start(*arguments, **environment))


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
