"""What the user gets: progress while it runs, then the report (a line a rank, two matrices, the verdict), the JSON, and
the post to the dashboard: an event of a run, sent by rank 0 alone.
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec

from rangewatch import statistics, wire
from rangewatch.checks.linkcheck.group_result import ranges
from rangewatch.client.server_api import write_line
from rangewatch.core import limits
from rangewatch.core.version import VERSION
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, StreamHeader

Result = dict[str, Any]

MATRIX_RANKS = 16
"""More are no longer read at a glance: then only the worst links are listed."""
LISTED = 10


def text(result: Result, width: int | None = None) -> Iterator[str]:
    """The lines of the report; matrices in parts that fit `width` characters, where there is a terminal."""
    yield from map(_rank, result["ranks"], [result] * result["world_size"])
    if result["pairs"]:
        yield ""
        yield from _tables(result, width)
    yield ""
    yield from verdict(result)
    yield f"{'OK' if result['ok'] else 'BAD'} after {result['duration_s']:.1f} s"


def verdict(result: Result) -> Iterator[str]:
    """What was found, ranks first; one line when all is well."""
    errors = {(each["a"], each["b"]): each["error"] for each in result["pairs"]}
    if result["ok"]:
        yield f"all {result['world_size']} ranks and all links tested are fine{_instead(result)}"
    for each in result["ranks"]:
        if not each["ok"]:
            yield f"rank {each['rank']} is bad ({each['fault']}): {each['error']}"
    for first, second in result["bad_hosts"]:
        yield f"no pair of ranks between {first} and {second} works: look at the network between them"
    for a, b in result["bad_pairs"]:
        yield f"the link of ranks {a} and {b} is bad: {errors[a, b]}"
    for a, b in result["slow_pairs"]:
        yield f"the link of ranks {a} and {b} is slow, and no other of theirs"
    yield from _groups(result)


def _instead(result: Result) -> str:
    """A check by gloo says nothing of the GPUs' links, which one who has GPUs must not overlook."""
    has_gpus = any(rank["device"].startswith("cuda") for rank in result["ranks"])
    return f", by gloo and not NCCL: {result['backend_reason']}" if has_gpus and result["backend_reason"] else ""


def _groups(result: Result) -> Iterator[str]:
    for group in result["bad_groups"]:
        yield f"{ranges(group)} fail together, and no smaller group of them does"
    if result["nccl_error"]:
        yield f"NCCL does not work here, gloo was checked instead: {result['nccl_error']}"
    if result["is_passing_again"]:
        yield f"all ranks together failed once, and passed when tried again: {result['all_ranks']['error']}"
    whole = result["all_ranks"]
    elsewhere = (result["bad_ranks"], result["bad_pairs"], result["bad_groups"], result["is_passing_again"])
    if whole and not whole["ok"] and not any(elsewhere):
        yield f"all ranks together: {whole['error']}"
    working = [each for each in result["subsets"] if each["ok"]]
    if not result["ok"] and working:
        yield f"{ranges(max((each['ranks'] for each in working), key=len))} work together"


def _rank(rank: dict[str, Any], result: Result) -> str:
    where = f"[{rank['host'] or '?'}:{'?' if rank['local_rank'] is None else rank['local_rank']}]"
    what = f": {rank['device']}, {result['backend']}" if rank["device"] else ""
    return f"{where} {'OK ' if rank['ok'] else 'BAD'} rank {rank['rank']} of {result['world_size']}{what}"


def _tables(result: Result, width: int | None) -> Iterator[str]:
    if result["world_size"] > MATRIX_RANKS:
        yield from _worst(result)
        return
    size = f"{result['message_bytes'] / 2**20:g} MiB"
    yield f"busbw of pairs in GB/s (all_reduce of {size})"
    yield from _matrix(result, width, lambda pair: _number(pair["busbw_bytes_per_s"], 1e9))
    yield "latency of pairs in us (all_reduce of 8 bytes)"
    yield from _matrix(result, width, lambda pair: _number(pair["latency_s"], 1e-6))


def _matrix(result: Result, width: int | None, cell: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    cells = {(each["a"], each["b"]): _cell(each, cell) for each in result["pairs"]}
    ranks = range(result["world_size"])
    together = MATRIX_RANKS if width is None else max((width - 5) // 8, 1)
    for first in ranks[::together]:
        columns = ranks[first : first + together]
        yield " " * 5 + "".join(f"{rank:>8}" for rank in columns)
        for row in ranks:
            yield f"{row:>5}" + "".join(f"{cells.get((min(row, each), max(row, each)), '.'):>8}" for each in columns)


def _cell(pair: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> str:
    if pair["ok"] is None:
        return "-"
    return cell(pair) + "*" * pair["slow"] if pair["ok"] else "FAILED"


def _number(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.3g}" if value / unit < 1000 else f"{value / unit:.0f}"


def _worst(result: Result) -> Iterator[str]:
    timed = [each for each in result["pairs"] if each["ok"] and each["busbw_bytes_per_s"]]
    yield f"{len(result['pairs'])} pairs; those with the least busbw:"
    for each in sorted(timed, key=lambda pair: pair["busbw_bytes_per_s"])[:LISTED]:
        rate, latency = _number(each["busbw_bytes_per_s"], 1e9), _number(each["latency_s"], 1e-6)
        yield f"  {each['a']:>5} {each['b']:>5}  {rate:>8} GB/s  {latency:>8} us{' slow' * each['slow']}"


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
    shown = []
    for pair in sorted(result["pairs"], key=lambda each: (each["ok"] is not False, not each["slow"])):
        short = _short(pair)
        room -= len(msgspec.json.encode(short)) + 1
        if room < 0:
            break
        shown.append(short)
    shown.sort(key=lambda each: (each["a"], each["b"]))
    return {**data, "pairs": shown, "pairs_left_out": len(result["pairs"]) - len(shown)}


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a rank or a pair: without what its worker printed, which may name files of the host."""
    short = {**entry, "error": entry["error"][:ERROR_CHARACTERS]}
    short.pop("log")
    return short


def post(url: str, token: str | None, run: str, result: dict[str, Any]) -> None:
    """Send it, as rank 0 of `run`, which ends with it. Raises `NotPosted`."""
    info = _info(run, result)
    catalogue = Catalogue(statistics.ALL, ())
    message = next(verdict(result), "")[: limits.MESSAGE_CHARACTERS]
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


def to_stderr(line: str) -> None:
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
        to_stderr(f"{time.monotonic() - BEGIN_S:6.1f} s  {line}")

    def finish(self, result: dict[str, Any]) -> int:
        """Write and post; the exit status."""
        stream = sys.stderr if self.json == "-" else sys.stdout
        width = shutil.get_terminal_size().columns if stream.isatty() else None
        failures = [_written(stream, text(result, width)), self._write(result)]
        _written(sys.stderr, _logs(result))
        for each in filter(None, failures):
            to_stderr(f"rangewatch linkcheck: the result cannot be written: {each}")
        is_out = self._post(result) and not any(failures)
        return 1 if not result["ok"] else 0 if is_out else 2

    def _write(self, result: dict[str, Any]) -> str:
        """Why the JSON could not be written, else ""."""
        document = json.dumps(result, indent=1)
        if self.json == "-":
            return _written(sys.stdout, document.splitlines())
        if self.json is not None:
            try:
                Path(self.json).write_text(document + "\n")
            except OSError as error:
                return str(error)
        return ""

    def _post(self, result: dict[str, Any]) -> bool:
        if self.url is None:
            return True
        try:
            post(self.url, self.token, self.run, result)
        except NotPosted as error:
            to_stderr(f"rangewatch linkcheck: {error}")
            return False
        self.emit(f"posted to {self.url} as run {self.run}")
        return True


def _logs(result: dict[str, Any]) -> Iterable[str]:
    for each in [*result["ranks"], *result["pairs"]]:
        if each["log"]:
            yield f"printed by rank {each['rank']}:" if "rank" in each else f"printed by {each['a']}-{each['b']}:"
            yield from (f"  {line}" for line in each["log"].splitlines()[-LOG_LINES:])
