"""The list of runs, a page at a time; what cannot have changed since it was last made is not made again."""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server import overview
from rangewatch_server.errors import ApiError
from rangewatch_server.queries import Reader
from rangewatch_server.store import tables

logger = logging.getLogger("rangewatch.server")

LIMIT, MOST = 100, 500  # runs of a page: one that is not cached costs about 5 ms


def page(reader: Reader, limit: int, before: int | None) -> dict[str, Any]:
    """The newest runs, or those that began before another; `next` is what to give as `before` for the rest."""
    ids = reader.run_ids(limit + 1, before)
    stamps = _stamps(reader, ids[:limit])
    lines = [line for run_id in ids[:limit] if (line := _readable(reader, run_id, stamps.get(run_id))) is not None]
    return {"runs": lines, "next": ids[limit - 1] if len(ids) > limit else None}


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
