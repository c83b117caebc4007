"""Ranks that ended without a goodbye, in the words of their node's watcher."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import func, select

from rangewatch_server.query.reader import RunReader
from rangewatch_server.store import tables
from rangewatch_server.store.exit_state import DIED, TERMINATED

MOST_DEATHS = 64
"""Ranks whose end is shown; a thousand that were stopped together say the same."""

MOST_STACK = 16 << 10
"""Characters of a stack that is shown."""

MOST_SENTENCES = 3
_event, _stream = tables.events.c, tables.streams.c

_SHOWN = (
    "exit_code", "signal", "signal_name", "oom_kills", "core_dumped", "phase", "last", "next", "module", "collectives",
)  # fmt: skip


class Ended(NamedTuple):
    """A rank that did not say how it ended. `event`: the one of its watcher, `message` what that says of it."""

    event: int
    rank: int
    state: str
    message: str


def ended(run: RunReader) -> list[Ended]:
    """The newest process of each rank; those that nobody stopped from outside first, in the order they were told."""
    states = {
        rank.streams[-1].id: (rank.rank, rank.row.state)
        for rank in run.ranks.values()
        if rank.row.state in (DIED, TERMINATED)
    }
    if not states:
        return []
    newest = (
        select(func.max(_event.id))
        .where(_event.stream_id.in_(states), _event.kind == "died")
        .group_by(_event.stream_id)
    )
    query = select(_event.id, _event.stream_id, _event.message).where(_event.id.in_(newest)).order_by(_event.id)
    found = [Ended(row.id, *states[row.stream_id], row.message) for row in run.connection.execute(query)]
    return sorted(found, key=lambda each: each.state == TERMINATED)


def deaths(run: RunReader, found: list[Ended]) -> list[dict[str, Any]]:
    """The first of them with all that is known."""
    shown = {each.event: each for each in found[:MOST_DEATHS]}
    query = select(_event.id, _event.time_ns, _event.step, _event.data).where(_event.id.in_(shown))
    rows = {row.id: row for row in run.connection.execute(query)} if shown else {}
    return [_death(each, rows[number]) for number, each in shown.items()]


def _death(each: Ended, row: Any) -> dict[str, Any]:
    data = msgspec.json.decode(row.data)
    return {
        "rank": each.rank, "state": each.state, "text": f"rank {each.rank} {each.message}",
        "step": row.step if row.step >= 0 else None,
        "time_ns": row.time_ns, "stack": str(data.get("stack") or "")[:MOST_STACK],
    } | {name: data.get(name) for name in _SHOWN}  # fmt: skip


def sentence(found: list[Ended]) -> str | None:
    """What is said of them first; None where none died."""
    if not found:
        return None
    died = _alike([each for each in found if each.state == DIED])
    reported = [_of(each) for each in died[:MOST_SENTENCES]]
    left = sum(len(each) for each in died[MOST_SENTENCES:])
    if left:
        reported.append(f"{left} more {'rank' if left == 1 else 'ranks'} died.")
    stopped = [each for each in found if each.state == TERMINATED]
    return " ".join([*reported, _of(stopped)] if stopped else reported)


def _alike(found: list[Ended]) -> list[list[Ended]]:
    """Those of which the same is said together, in the order of the first of each."""
    order = {each.message: place for place, each in reversed(list(enumerate(found)))}
    by_message = sorted(found, key=lambda each: order[each.message])
    return [list(each) for _, each in groupby(by_message, key=lambda each: each.message)]


def _of(found: list[Ended]) -> str:
    first, more = found[0], len(found) - 1
    were = "was 1 other rank" if more == 1 else f"were {more} other ranks"
    if not more:
        also = ""
    elif all(each.message == first.message for each in found):
        also = f", and so {were}"
    else:  # in other places than the first
        also = f"; so {were}, each where it was"
    return f"Rank {first.rank} {first.message}{also}."
