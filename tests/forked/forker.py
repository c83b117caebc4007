"""Asks a process that has imported what programs of a kind need to fork itself for each of them."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forked.process import DEVNULL, PIPE, Forked

ROOT = Path(__file__).parents[2]


class Forker:
    """Of programs that need `modules`. Its process starts with the first of them, and ends with this one."""

    def __init__(self, *modules: str) -> None:
        self._modules, self._path = modules, os.environ.get("PYTHONPATH")
        self._asked: socket.socket | None = None

    def start(self, *arguments: Path | str, **options: Any) -> Forked | subprocess.Popen[Any]:
        """`arguments` are what would follow `python`, `options` as `subprocess.Popen` has them."""
        if (options.get("env") or os.environ).get("PYTHONPATH") != self._path:  # may have other modules, or patch them
            return subprocess.Popen([sys.executable, *arguments], **options)
        return Forked(self._fork, arguments, **options)

    def run(
        self, *arguments: Path | str, timeout: float | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Its status and what it said, as text. Raises `subprocess.TimeoutExpired`."""
        program = self.start(*arguments, stdout=PIPE, stderr=PIPE, text=True, **options)
        try:
            out, err = program.communicate(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess(program.args, program.wait(), out, err)

    def _fork(self, program: dict[str, Any], descriptors: list[int]) -> None:
        if self._asked is None:
            self._asked = self._begin()
        socket.send_fds(self._asked, [json.dumps(program).encode()], descriptors)

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forked.template", str(theirs.fileno()), *self._modules]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as torchrun has it; read as torch is imported
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(lambda: (ours.close(), process.wait()))
        return ours
