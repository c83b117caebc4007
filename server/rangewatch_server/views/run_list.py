"""The list of runs, a page at a time; what cannot have changed since it was last made is not made again."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core.errors import ApiError
from rangewatch_server.query.reader import Reader
from rangewatch_server.store import alerts as alert_rows
from rangewatch_server.store import run_metadata, tables
from rangewatch_server.views import overview

logger = logging.getLogger("rangewatch.server")

SORTS = ("newest", "oldest", "name", "seen")
LIMIT, MOST = 100, 500  # runs of a page: one that is not cached costs about 5 ms


class Listing(msgspec.Struct, frozen=True):
    """Which runs, in which order (`SORTS`), how many, and behind which: `before` a run, where the newest come first, or
    after the first `offset`.
    """

    limit: int = LIMIT
    before: int | None = None
    offset: int = 0
    q: str = ""
    archived: bool | None = None
    sort: str = SORTS[0]


def page(reader: Reader, wanted: Listing) -> dict[str, Any]:
    """The runs that are wanted; `next` is what to give as `before` for the rest, `total` how many match in all."""
    found = run_metadata.matching(reader.connection, wanted.q, wanted.archived)
    ids = _ordered(reader, found, wanted.sort)
    behind = [run_id for run_id in ids if wanted.before is None or run_id < wanted.before][wanted.offset :]
    chosen, is_last = behind[: wanted.limit], len(behind) <= wanted.limit
    stamps, abouts = _stamps(reader, chosen), run_metadata.of_runs(reader.connection, chosen)
    alerts = alert_rows.standing_counts(reader.connection, chosen)
    lines = [
        line | run_metadata.shown(abouts[run_id]) | {"alerts": alerts.get(run_id, {})}
        for run_id in chosen
        if (line := _readable(reader, run_id, stamps.get(run_id))) is not None
    ]
    next_before = None if is_last or wanted.sort != SORTS[0] else chosen[-1]
    return {"runs": lines, "next": next_before, "total": len(found)}


def _ordered(reader: Reader, found: list[Any], sort: str) -> list[int]:
    """Numbers of runs that come newest first, in the order that is asked for; of equal ones the newest first."""
    if sort == "name":
        found = sorted(found, key=lambda row: (row.title or row.name).casefold())
    elif sort == "seen":
        seen = _last_seen(reader)
        found = sorted(found, key=lambda row: -seen.get(row.id, 0))
    elif sort == "oldest":
        found = found[::-1]
    return [row.id for row in found]


def _last_seen(reader: Reader) -> dict[int, int]:
    streams = tables.streams.c
    query = select(streams.run_id, func.max(streams.last_seen_ns)).group_by(streams.run_id)
    return {row[0]: row[1] for row in reader.connection.execute(query)}


def _stamps(reader: Reader, ids: list[int]) -> dict[int, tuple[int, int, int]]:
    """What changes when anything of a run does: how many streams it has, their versions, when one last spoke."""
    streams = tables.streams.c
    query = select(streams.run_id, func.count(), func.sum(streams.version), func.max(streams.last_seen_ns))
    rows = reader.connection.execute(query.where(streams.run_id.in_(ids)).group_by(streams.run_id))
    return {run: (count, int(versions), seen) for run, count, versions, seen in rows}


def _readable(reader: Reader, run_id: int, stamp: tuple[int, int, int] | None) -> dict[str, Any] | None:
    """A run whose rows contradict each other must not cost the list: it is left out, and the log says so once."""
    try:
        return _line(reader, run_id, stamp)
    except (ApiError, SQLAlchemyError):  # the time limit, or a database that is away: nothing of this run's
        raise
    except Exception:
        key = (run_id, "unreadable", stamp)
        if reader.cache.get(key) is None:
            reader.cache.put(key, True, 100)
            logger.exception("run %d cannot be read, and is not in the list", run_id)
        return None


def _line(reader: Reader, run_id: int, stamp: tuple[int, int, int] | None) -> dict[str, Any] | None:
    # Only a run that nobody speaks for stays as it is: which ranks of another are live is a matter of the clock.
    is_quiet = stamp is not None and time.time_ns() - stamp[2] > reader.live_ns
    key = (run_id, "line", stamp)
    found: dict[str, Any] | None = reader.cache.get(key) if is_quiet else None
    if found is None:
        run = reader.run(run_id)
        if run is None:
            return None
        found = overview.run_line(run)
        if is_quiet:
            reader.cache.put(key, found, 4_000)
    return found
