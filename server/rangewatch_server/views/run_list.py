"""The list of runs, a page at a time; what cannot have changed since it was last made is not made again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core import deadline
from rangewatch_server.core.errors import ApiError
from rangewatch_server.query.reader import Reader
from rangewatch_server.store import alerts, run_metadata, tables
from rangewatch_server.views import overview, run_loss, verdict

logger = logging.getLogger("rangewatch.server")

Sort = Literal[
    "newest", "oldest", "name", "seen", "state", "verdict", "loss", "step", "ranks", "headroom", "scale", "skipped"
]  # fmt: skip
SORTS: tuple[Sort, ...] = get_args(Sort)
BY_ROW = frozenset[Sort](("newest", "oldest", "name", "seen"))  # read from the runs' rows, of however many
LIMIT, MOST = 100, 500  # runs of a page, or sorted by what is read from each: one that is not cached costs about 5 ms
LINE_S, PAGE_S = 2.0, 4.0
"""Seconds to make one run's line in, and all of a page's: of 60 runs with 30,000 tensors each may take 0.3."""
SLOW_AGAIN_S = 30.0
"""Seconds after which a line that took too long is tried again."""
SLOW = "Reading it takes long: this line is without its figures. Open the run, or load the list again."
UNREADABLE, UNREADABLE_REASON = "unreadable", "It cannot be read; the server's log says why."
STATES = (
    UNREADABLE,
    "hung",
    "died",
    "failed",
    "terminated",
    "interrupted",
    "stale",
    "live",
    "empty",
    "finished",
)  # gravest first
LEVELS = ("critical", "warning", "ok")

Stamp = tuple[int, int, int]


class Listing(msgspec.Struct, frozen=True):
    """Which runs, in which order (`SORTS`), how many, and behind which: `before` a run, where the newest come first, or
    after the first `offset`.
    """

    limit: int = LIMIT
    before: int | None = None
    offset: int = 0
    q: str = ""
    archived: bool | None = None
    sort: Sort = "newest"
    is_down: bool = False
    """The other way round, but that what is not known stays last."""
    states: tuple[str, ...] = ()
    """As they are shown; none: all."""

    @property
    def needs_lines(self) -> bool:
        """Whether what is read of each run decides which are shown."""
        return self.sort not in BY_ROW or bool(self.states)


def page(reader: Reader, wanted: Listing) -> dict[str, Any]:
    """The runs that are wanted; `next` is what to give as `before` for the rest, `total` how many match in all. Where
    more runs match than are read for an order or a state, `of_newest` is how many of the newest were.
    """
    rows = run_metadata.matching(reader.connection, wanted.q, wanted.archived)
    if wanted.needs_lines:
        return _page_by_lines(reader, rows, wanted)
    ids = _ordered(reader, rows, wanted)
    behind = [run_id for run_id in ids if wanted.before is None or run_id < wanted.before][wanted.offset :]
    chosen, is_last = behind[: wanted.limit], len(behind) <= wanted.limit
    next_before = None if is_last or wanted.sort != SORTS[0] or wanted.is_down else chosen[-1]
    return {"runs": _lines(reader, chosen), "next": next_before, "total": len(rows), "of_newest": None}


def _page_by_lines(reader: Reader, rows: list[Any], wanted: Listing) -> dict[str, Any]:
    lines = _lines(reader, _ordered(reader, rows[:MOST], wanted))
    lines = [line for line in lines if not wanted.states or line["state"] in wanted.states]
    if wanted.sort not in BY_ROW:
        key = _KEYS[wanted.sort]
        known = [line for line in lines if key(line) is not None]
        unknown = [line for line in lines if key(line) is None]
        lines = sorted(known, key=key, reverse=wanted.is_down) + unknown
    shown = lines[wanted.offset : wanted.offset + wanted.limit]
    return {"runs": shown, "next": None, "total": len(lines), "of_newest": MOST if len(rows) > MOST else None}


def _place(order: Sequence[str], value: str) -> int:
    return order.index(value) if value in order else len(order)


def _headroom(line: dict[str, Any]) -> float | None:
    least = line["least_headroom"]
    if least is None:
        return None
    return -1.0 if least["bits"] is None else float(least["bits"])


_KEYS: dict[Sort, Callable[[dict[str, Any]], Any]] = {
    "state": lambda line: _place(STATES, line["state"]),
    "verdict": lambda line: (_place(LEVELS, line["headline"]["level"]), -sum(line["alerts"].values())),
    "loss": lambda line: line["loss"] and line["loss"]["last"],
    "step": lambda line: line["last_step"],
    "ranks": lambda line: line["world_size"],
    "headroom": _headroom,
    "scale": lambda line: line["loss_scale"],
    "skipped": lambda line: line["skipped_steps"],
}


def _lines(reader: Reader, chosen: list[int]) -> list[dict[str, Any]]:
    stamps, abouts = _stamps(reader, chosen), run_metadata.of_runs(reader.connection, chosen)
    counts, hung = alerts.standing_counts(reader.connection, chosen), alerts.hung(reader.connection, chosen)
    headlines, making = verdict.headlines(reader.connection, chosen), _Making()
    return [
        line
        | run_metadata.shown(abouts[run_id])
        | {"alerts": counts.get(run_id, {}), "headline": headlines[run_id]}
        | {"state": overview.shown_state(line["state"], hung & {run_id})}
        for run_id in chosen
        if (line := _readable(reader, run_id, stamps.get(run_id), making)) is not None
    ]


def _ordered(reader: Reader, rows: list[Any], wanted: Listing) -> list[int]:
    """Numbers of runs that come newest first, in the order that is asked for; of equal ones the newest first."""
    sign = -1 if wanted.is_down else 1
    if wanted.sort == "name":
        rows = sorted(rows, key=lambda row: (row.title or row.name).casefold(), reverse=wanted.is_down)
    elif wanted.sort == "seen":
        seen = _last_seen(reader)
        rows = sorted(rows, key=lambda row: -sign * seen.get(row.id, 0))
    elif (wanted.sort == "oldest") != wanted.is_down and wanted.sort in ("newest", "oldest"):
        rows = rows[::-1]
    return [row.id for row in rows]


def _last_seen(reader: Reader) -> dict[int, int]:
    streams = tables.streams.c
    query = select(streams.run_id, func.max(streams.last_seen_ns)).group_by(streams.run_id)
    return {row[0]: row[1] for row in reader.connection.execute(query)}


def _stamps(reader: Reader, ids: list[int]) -> dict[int, Stamp]:
    """What changes when anything of a run does: how many streams it has, their versions, when one last spoke."""
    streams = tables.streams.c
    query = select(streams.run_id, func.count(), func.sum(streams.version), func.max(streams.last_seen_ns))
    rows = reader.connection.execute(query.where(streams.run_id.in_(ids)).group_by(streams.run_id))
    return {run: (count, int(versions), seen) for run, count, versions, seen in rows}


class _Making:
    """How long lines that are not stored may take to be made, for one page."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + PAGE_S

    @property
    def left_s(self) -> float:
        """For the next one."""
        return min(self._ends_s - time.monotonic(), LINE_S)


def _readable(reader: Reader, run_id: int, stamp: Stamp | None, making: _Making) -> dict[str, Any] | None:
    """A run that takes long, or whose rows contradict each other, must not cost the list: it says which it is. The log
    says why of the latter, once.
    """
    try:
        return _line(reader, run_id, stamp, making)
    except (ApiError, SQLAlchemyError):  # the time limit, or a database that is away: nothing of this run's
        raise
    except Exception:
        key = (run_id, "unreadable", stamp)
        if reader.summaries.get(key) is None:
            reader.summaries.put(key, True, 100)
            logger.exception("run %d cannot be read; the list says so", run_id)
        return _unreadable(reader, run_id)


def _line(reader: Reader, run_id: int, stamp: Stamp | None, making: _Making) -> dict[str, Any] | None:
    # Only a run that nobody speaks for stays as it is: which ranks of another are live is a matter of the clock.
    is_quiet = stamp is not None and time.time_ns() - stamp[2] > reader.live_ns
    key, slow = (run_id, "line", stamp), (run_id, "slow", int(time.monotonic() / SLOW_AGAIN_S))
    line: dict[str, Any] | None = reader.summaries.get(key) if is_quiet else None
    if line is not None:
        return line
    run = reader.run(run_id)
    if run is None:
        return None
    if making.left_s > 0 and reader.summaries.get(slow) is None:
        try:
            with deadline.tighter(reader.connection, making.left_s):
                line = overview.run_line(run) | {"loss": run_loss.summary(run), "is_partial": False}
        except deadline.TimeLimitReached:
            deadline.check()  # of the page
            reader.summaries.put(slow, True, 100)
        else:
            if is_quiet:
                reader.summaries.put(key, line, 6_000)
            return line
    line = overview.rows_line(run) | {"loss": None, "is_partial": True}
    return line | {"reason": line["reason"] or SLOW}


def _unreadable(reader: Reader, run_id: int) -> dict[str, Any] | None:
    row = reader.connection.execute(select(tables.runs).where(tables.runs.c.id == run_id)).first()
    if row is None:
        return None
    return {
        "id": run_id, "name": row.name, "state": UNREADABLE, "reason": UNREADABLE_REASON, "ranks_reporting": 0,
        "world_size": 0, "first_step": None, "last_step": None, "loss_scale": None, "loss_scale_first": None,
        "skipped_steps": 0, "started_ns": row.created_ns, "last_seen_ns": row.created_ns, "least_headroom": None,
        "sparkline": [], "loss": None, "is_partial": True,
    }  # fmt: skip
