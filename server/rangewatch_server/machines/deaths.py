"""Ranks that ended without a goodbye, in the words of their node's watcher."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from rangewatch.wire.events import Died, details_of
from rangewatch_server.query import events
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.exit_state import DIED, TERMINATED

MOST_DEATHS = 64
"""Ranks whose end is shown; a thousand that were stopped together say the same."""

MOST_STACK = 16 << 10
"""Characters of a stack that is shown."""

MOST_SENTENCES = 3

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
    """The newest process of each rank; those that nobody stopped from outside first, in order of their reports."""
    states = {
        rank.streams[-1].id: (rank.rank, rank.row.state)
        for rank in run.ranks.values()
        if rank.row.state in (DIED, TERMINATED)
    }
    if not states:
        return []
    heads = events.last_heads(run.connection, states, [Died.KIND])
    ended_ranks = [Ended(event.id, *states[event.stream_id], event.message) for event in heads]
    return sorted(ended_ranks, key=lambda each: each.state == TERMINATED)


def deaths(run: RunReader, ended_ranks: list[Ended]) -> list[dict[str, Any]]:
    """The first of them with all that is known."""
    shown = {each.event: each for each in ended_ranks[:MOST_DEATHS]}
    stored = {event.id: event for event in events.by_id(run.connection, shown)}
    return [_death(each, stored[number]) for number, each in shown.items()]


def _death(each: Ended, row: StoredEvent) -> dict[str, Any]:
    known = row.read(Died) or Died()
    return {
        "rank": each.rank, "state": each.state, "text": f"rank {each.rank} {each.message}",
        "step": row.step if row.step >= 0 else None,
        "time_ns": row.time_ns, "stack": (known.stack or "")[:MOST_STACK],
    } | dict.fromkeys(_SHOWN) | {name: each for name, each in details_of(known).items() if name in _SHOWN}  # fmt: skip


def sentence(ended_ranks: list[Ended]) -> str | None:
    """What is said of them first; None where none died."""
    if not ended_ranks:
        return None
    died = _alike([each for each in ended_ranks if each.state == DIED])
    reported = [_of(each) for each in died[:MOST_SENTENCES]]
    left = sum(len(each) for each in died[MOST_SENTENCES:])
    if left:
        reported.append(f"{left} more {'rank' if left == 1 else 'ranks'} died.")
    stopped = [each for each in ended_ranks if each.state == TERMINATED]
    return " ".join([*reported, _of(stopped)] if stopped else reported)


def _alike(ended_ranks: list[Ended]) -> list[list[Ended]]:
    """Those of which the same is said together, in the order of the first of each."""
    order = {each.message: place for place, each in reversed(list(enumerate(ended_ranks)))}
    by_message = sorted(ended_ranks, key=lambda each: order[each.message])
    return [list(each) for _, each in groupby(by_message, key=lambda each: each.message)]


def _of(ended_ranks: list[Ended]) -> str:
    first, more = ended_ranks[0], len(ended_ranks) - 1
    were = "was 1 other rank" if more == 1 else f"were {more} other ranks"
    if not more:
        also = ""
    elif all(each.message == first.message for each in ended_ranks):
        also = f", and so {were}"
    else:  # in other places than the first
        also = f"; so {were}, each where it was"
    return f"Rank {first.rank} {first.message}{also}."
