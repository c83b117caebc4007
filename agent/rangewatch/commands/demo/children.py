"""The demo's child processes: one server, and one training process a rank.

Each child is in a session of its own, so that Ctrl-C reaches only the demo, which then ends its children in order. What
a child says on standard error goes to a file and is quoted when the child fails.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rangewatch.commands.demo.progress import is_server

LOOPBACK = "127.0.0.1"
QUOTED_LINES = 12
SERVER_START_S = 30.0
TERMINATE_S = 10.0


class ChildFailed(Exception):
    """A child process ended badly; the message names it and quotes the end of its standard error."""


class Child:
    """One subprocess, ended when the `with` block is left."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], logs: Path, *, read: bool = False
    ) -> None:
        """Starts it. With `read`, somebody will read its standard output; else that goes to the log too."""
        self.name = name
        self._log = logs / f"{name.replace(' ', '-')}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter, our own modules
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if read else log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(TERMINATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def stdout(self) -> IO[bytes]:
        """What the child writes; to be read to its end by one reader."""
        assert self._process.stdout is not None
        return self._process.stdout

    def ended(self) -> bool:
        """True when it has ended well, False while it runs; raises ChildFailed when it has ended badly."""
        status = self._process.poll()
        if status:
            raise ChildFailed(f"{self.name} ended with status {status}\n{self.last_lines()}")
        return status == 0

    def last_lines(self) -> str:
        """The last lines of its standard error."""
        lines = self._log.read_text(errors="replace").splitlines()[-QUOTED_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def free_port(first: int = 0) -> int:
    """A port of the loopback interface that nobody listens on: the first free one from `first` on, or any for 0."""
    if first == 0:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            return int(probe.getsockname()[1])
    return next(port for port in range(first, 65536) if port_is_free(port))


def port_is_free(port: int) -> bool:
    """Can a server listen on this port? A port that is only waiting out its last connections counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


class LineReader:
    """Rank 0's lines of JSON, read by a thread of its own so that waiting for one can have an end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), name="rangewatch-demo-lines", daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put(json.loads(line))

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line, or None when none came in time."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None


def start_ranks(options: list[str], ranks: int, environment: Mapping[str, str], logs: Path) -> list[Child]:
    """Start `python -m rangewatch.commands.demo.train OPTIONS` once a rank, as torchrun would; read rank 0's output."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port()), **environment}
    command = [sys.executable, "-m", "rangewatch.commands.demo.train", *options]
    own = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [Child(f"rank {rank}", command, own[rank], logs, read=rank == 0) for rank in range(ranks)]


def start_server(port: int, database: Path, logs: Path, children: ExitStack) -> tuple[str, Child]:
    """Starts `rangewatch serve` and waits for its answer; gives its URL and the process, which `children` will end."""
    command = [sys.executable, "-m", "rangewatch", "serve", "--port", str(port), "--db", str(database)]
    server = children.enter_context(Child("server", command, {}, logs))
    url = f"http://{LOOPBACK}:{port}"
    give_up_s = time.monotonic() + SERVER_START_S
    while not is_server(url):
        if server.ended() or time.monotonic() > give_up_s:
            raise ChildFailed(f"the server did not start\n{server.last_lines()}")
        time.sleep(0.1)
    return url, server
