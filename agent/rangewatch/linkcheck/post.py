"""Posts a result to the dashboard, as an event of a run. Works without a collective, from rank 0 only."""

from __future__ import annotations

import os
import platform
import socket
import time
import uuid
from typing import Any

import msgspec

from rangewatch import __version__, limits, statistics, wire
from rangewatch.linkcheck import report
from rangewatch.records import Batch, Catalogue, Event, Opening, RankInfo
from rangewatch.transport import Outcome, Transport

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
        for record in (Opening(info, catalogue), batch):
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
        versions={"rangewatch": __version__, "python": platform.python_version()},
    )
