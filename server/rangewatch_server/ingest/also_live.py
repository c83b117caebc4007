"""Other processes that send as the same rank of the same run: two jobs of one name, which merge without a word.

A restart is none: its older process speaks no more. So another process counts only once it has spoken for a while
beside this one. What is looked at is in memory already; a row is read only where there is something to say.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, select

from rangewatch_server.ingest.merged_ranks import Sibling
from rangewatch_server.ingest.stream import StreamState
from rangewatch_server.store import tables

LIVE_NS = 20 * 10**9  # the slowest pace is 10 s
LOOK_EVERY_NS = 10 * 10**9  # of one rank
SPOKEN_FOR_NS = 5 * 10**9  # between two looks; a process that ends sends its last batches within less
MAX_LOOKS = 4_096


class OtherProcess(msgspec.Struct, frozen=True):
    """Where it runs."""

    host: str
    pid: int


class _Look(msgspec.Struct, frozen=True):
    at_ns: int
    seen: dict[int, int]
    """Other live streams of the rank, by id: when each had spoken last."""


class AlsoLive:
    """Used by the writer's thread."""

    def __init__(self) -> None:
        self._looks: dict[int, _Look] = {}

    def look(self, connection: Connection, stream: StreamState, siblings: Iterable[Sibling]) -> OtherProcess | None:
        """Another process that goes on sending as `stream`'s rank, of those of `siblings`; None most of the time."""
        now_ns, before = stream.last_seen_ns, self._looks.get(stream.id)
        if before is not None and 0 <= now_ns - before.at_ns < LOOK_EVERY_NS:
            return None
        live = {
            each.id: each.last_seen_ns for each in siblings
            if each.id != stream.id and each.state == "open" and abs(now_ns - each.last_seen_ns) < LIVE_NS
        }  # fmt: skip
        self._looks.pop(stream.id, None)
        if not live:
            return None
        if len(self._looks) >= MAX_LOOKS:
            self._looks.clear()
        self._looks[stream.id] = _Look(now_ns, live)
        known = before.seen if before is not None else {}
        going_on = (each for each, seen_ns in live.items() if seen_ns - known.get(each, seen_ns) >= SPOKEN_FOR_NS)
        other = next(going_on, None)
        return None if other is None else _about(connection, other)


def _about(connection: Connection, stream_id: int) -> OtherProcess | None:
    columns = tables.streams.c
    info = connection.execute(select(columns.info).where(columns.id == stream_id)).scalar()
    return None if info is None else msgspec.json.decode(info, type=OtherProcess)
