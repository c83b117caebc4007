"""A program in a process forked for it: used as a `subprocess.Popen` is, though its parent is another process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE
Start = Callable[[dict[str, Any], list[int]], None]
"""Starts a program with these descriptors: where it is told of, and its three streams."""


class Forked:
    """`arguments` are what would follow `python`; all else is as `subprocess.Popen` has it."""

    def __init__(
        self, start: Start, arguments: Sequence[Path | str], *, stdin: int = DEVNULL,
        stdout: int | IO[Any] | None = None, stderr: int | IO[Any] | None = None, text: bool = False,
        errors: str | None = None, env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
    ) -> None:  # fmt: skip
        self.args, self.returncode = [str(each) for each in arguments], None
        reported, emit = os.pipe()
        ends = [_ends(number, wanted) for number, wanted in enumerate((stdin, stdout, stderr))]
        program = {"arguments": self.args, "environment": dict(env or os.environ), "folder": str(cwd or Path.cwd())}
        start(program, [emit, *(each.theirs for each in ends)])
        for descriptor in (emit, *(each.theirs for each in ends if each.is_opened)):
            os.close(descriptor)
        streams = [each.ours and os.fdopen(each.ours, each.mode + "b" * (not text), errors=errors) for each in ends]
        self.stdin, self.stdout, self.stderr = streams
        self._reported = os.fdopen(reported)
        self.pid = int(self._reported.readline())
        self._readers: list[Reader] = []

    def poll(self) -> int | None:
        """Its status once it has ended, as `subprocess` counts it."""
        if self.returncode is None and _has_said(self._reported, 0):
            self.returncode = int(self._reported.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None and not _has_said(self._reported, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        found = self.poll()
        assert found is not None
        return found

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All it has yet to say, and its end. Raises `subprocess.TimeoutExpired`, and may then be called again."""
        give_up_s = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        self._readers = self._readers or [Reader(self.stdout), Reader(self.stderr)]
        for reader in self._readers:
            reader.join(_left_s(give_up_s))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(_left_s(give_up_s))
        return self._readers[0].found, self._readers[1].found

    def send_signal(self, number: int) -> None:
        """Does nothing once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class Ends(NamedTuple):
    """The descriptors of a stream."""

    theirs: int
    is_opened: bool = False
    ours: int | None = None
    mode: str = "r"


def _ends(number: int, wanted: int | IO[Any] | None) -> Ends:
    if wanted is None:
        return Ends(number)
    if wanted == DEVNULL:
        return Ends(os.open(os.devnull, os.O_RDWR), True)
    if wanted == PIPE:
        reading, writing = os.pipe()
        return Ends(reading, True, writing, "w") if number == 0 else Ends(writing, True, reading)
    return Ends(wanted if isinstance(wanted, int) else wanted.fileno())


class Reader(threading.Thread):
    """Reads a stream to its end: `found`, None where there is no stream."""

    def __init__(self, stream: IO[Any] | None) -> None:
        super().__init__(daemon=True)
        self._stream, self.found = stream, None
        self.start()

    def run(self) -> None:
        """On the thread."""
        if self._stream is not None:
            with self._stream as stream:
                self.found = stream.read()


def _left_s(give_up_s: float | None) -> float | None:
    return None if give_up_s is None else max(0.0, give_up_s - time.monotonic())


def _has_said(stream: IO[Any], timeout: float | None) -> bool:
    """Whether there is something to read. Not `select`, which takes no descriptor above 1,023."""
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else max(0.0, timeout) * 1_000))
