"""Asks a process that has imported what programs of a kind need to fork itself for each of them."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.forked.process import DEVNULL, PIPE, Forked

TEMPLATE = Path(__file__).with_name("template.py")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}  # as torchrun has it; read as torch is imported
"""Of the template: before any test has changed its own."""


class Forker:
    """Of programs that need `modules`. Its process starts with the first of them, and ends with this one."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._asked: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self, *arguments: Path | str, **options: Any) -> Forked | subprocess.Popen[Any]:
        """`arguments` are what would follow `python`, `options` as `subprocess.Popen` has them."""
        path = (options.get("env") or os.environ).get("PYTHONPATH")
        if path != ENVIRONMENT.get("PYTHONPATH"):  # may have other modules, or patch them
            return subprocess.Popen([sys.executable, *arguments], **options)
        return Forked(self._fork, arguments, **options)

    def run(
        self, *arguments: Path | str, timeout: float | None = None, typed: str = "", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Its status and what it said, as text, once it was `typed` that. Raises `subprocess.TimeoutExpired`."""
        stdin = PIPE if typed else DEVNULL
        program = self.start(*arguments, stdin=stdin, stdout=PIPE, stderr=PIPE, text=True, **options)
        try:
            if program.stdin is not None:
                program.stdin.write(typed)
            out, err = program.communicate(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess(program.args, program.wait(), out, err)

    def _fork(self, program: dict[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            self._asked = self._asked or self._begin()
        socket.send_fds(self._asked, [json.dumps(program).encode()], descriptors)

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, str(TEMPLATE), str(theirs.fileno()), *self._modules]
        process = subprocess.Popen(
            command, cwd=TEMPLATE.parents[2], env=ENVIRONMENT, stdin=DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        atexit.register(lambda: (ours.close(), process.wait()))
        return ours
