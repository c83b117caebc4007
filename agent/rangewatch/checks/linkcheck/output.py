"""What the user gets: progress while it runs, then the report, the JSON, and the post to the dashboard.

Posts a result to the dashboard, as an event of a run. Works without a collective, from rank 0 only.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec

from rangewatch import statistics, wire
from rangewatch.checks.linkcheck import report
from rangewatch.client.server_api import write_line
from rangewatch.core import limits
from rangewatch.core.version import VERSION
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, StreamHeader

EVENT = "linkcheck"
EVENT_BYTES = 900_000
"""Of the details as JSON: the server takes 1 MiB."""
ERROR_CHARACTERS = 300
ATTEMPTS = 3


class NotPosted(Exception):
    """Why the server does not have it, in one line."""


def event_of(result: dict[str, Any]) -> dict[str, Any]:
    """The details of the event: the result, with as many pairs as fit, bad and slow ones first.

    `pairs_left_out` counts the others; up to some 100 ranks that is 0.
    """
    data = {**result, "pairs": [], "ranks": [_short(each) for each in result["ranks"]], "pairs_left_out": 0}
    room = EVENT_BYTES - len(msgspec.json.encode(data))
    kept = []
    for pair in sorted(result["pairs"], key=lambda each: (each["ok"] is not False, not each["slow"])):
        short = _short(pair)
        room -= len(msgspec.json.encode(short)) + 1
        if room < 0:
            break
        kept.append(short)
    kept.sort(key=lambda each: (each["a"], each["b"]))
    return {**data, "pairs": kept, "pairs_left_out": len(result["pairs"]) - len(kept)}


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a rank or a pair: without what its worker printed, which may name files of the host."""
    short = {**entry, "error": entry["error"][:ERROR_CHARACTERS]}
    short.pop("log")
    return short


def post(url: str, token: str | None, run: str, result: dict[str, Any]) -> None:
    """Send it, as rank 0 of `run`, which ends with it. Raises `NotPosted`."""
    info = _info(run, result)
    catalogue = Catalogue(statistics.ALL, ())
    message = next(report.verdict(result), "")[: limits.MESSAGE_CHARACTERS]
    now_ns = time.time_ns()
    events = (Event(EVENT, now_ns, -1, message, event_of(result)), Event("finished", now_ns, -1))
    batch = Batch(run, 0, info.incarnation, 0, wire.catalogue_digest(catalogue), events=events)
    transport = Transport(url, token)
    try:
        for record in (StreamHeader(info, catalogue), batch):
            _send(transport, wire.encode(record))
    finally:
        transport.close()


def _send(transport: Transport, body: bytes) -> None:
    for attempt in range(ATTEMPTS):
        reply = transport.post(body)
        if reply.outcome is Outcome.STORED:
            return
        if reply.outcome is not Outcome.RETRY:
            break
        if attempt + 1 < ATTEMPTS:
            time.sleep(1.0 if reply.retry_after_s is None else min(reply.retry_after_s, 5.0))
    raise NotPosted(f"{transport.url} did not take the result: {reply.detail}")


def _info(run: str, result: dict[str, Any]) -> RankInfo:
    return RankInfo(
        run=run,
        rank=0,
        world_size=1,  # one process sends, on behalf of all: the others are not missing from this run
        local_rank=0,
        host=socket.gethostname(),
        incarnation=uuid.uuid4().hex,
        started_ns=time.time_ns() - int(result["duration_s"] * 1e9),
        pid=os.getpid(),
        versions={"rangewatch": VERSION, "python": platform.python_version()},
    )


BEGIN_S = time.monotonic()
LOG_LINES = 12


def open_streams() -> None:
    """Where the caller closed standard streams, open the null device in their place: pipes would get their numbers."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(lowest)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def say(line: str) -> None:
    """A line to standard error; a reader that has gone away ends no check."""
    _written(sys.stderr, [line])


def _written(stream: TextIO, lines: Iterable[str]) -> str:
    """Write all; why that did not go, else ""."""
    try:
        for line in lines:
            write_line(stream, line)
        stream.flush()
    except OSError as error:
        # What is buffered would be tried again at exit, and change the exit status.
        os.dup2(nothing := os.open(os.devnull, os.O_WRONLY), stream.fileno())
        os.close(nothing)
        return error.strerror or str(error)
    return ""


class Output(NamedTuple):
    """`json`: a file, "-" for standard output (the report then goes to standard error), or None."""

    json: str | None
    url: str | None
    token: str | None
    run: str

    def emit(self, line: str) -> None:
        """A line of progress."""
        say(f"{time.monotonic() - BEGIN_S:6.1f} s  {line}")

    def finish(self, result: dict[str, Any]) -> int:
        """Write and post; the exit status."""
        stream = sys.stderr if self.json == "-" else sys.stdout
        width = shutil.get_terminal_size().columns if stream.isatty() else None
        failures = [_written(stream, report.text(result, width)), self._write(result)]
        _written(sys.stderr, _logs(result))
        for each in filter(None, failures):
            say(f"rangewatch linkcheck: the result cannot be written: {each}")
        is_out = self._post(result) and not any(failures)
        return 1 if not result["ok"] else 0 if is_out else 2

    def _write(self, result: dict[str, Any]) -> str:
        """Why the JSON could not be written, else ""."""
        text = json.dumps(result, indent=1)
        if self.json == "-":
            return _written(sys.stdout, text.splitlines())
        if self.json is not None:
            try:
                Path(self.json).write_text(text + "\n")
            except OSError as error:
                return str(error)
        return ""

    def _post(self, result: dict[str, Any]) -> bool:
        if self.url is None:
            return True
        try:
            post(self.url, self.token, self.run, result)
        except NotPosted as error:
            say(f"rangewatch linkcheck: {error}")
            return False
        self.emit(f"posted to {self.url} as run {self.run}")
        return True


def _logs(result: dict[str, Any]) -> Iterable[str]:
    for each in [*result["ranks"], *result["pairs"]]:
        if each["log"]:
            yield f"printed by rank {each['rank']}:" if "rank" in each else f"printed by {each['a']}-{each['b']}:"
            yield from (f"  {line}" for line in each["log"].splitlines()[-LOG_LINES:])
