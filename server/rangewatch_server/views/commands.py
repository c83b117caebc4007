"""What was asked of a run, and what became of it on each rank: read for the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select

from rangewatch_server.ingest.commands import EXPIRES_S
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store import tables

NOT_ANSWERED = f"no answer within {EXPIRES_S / 60:.0f} minutes"


def newest(run: RunReader, limit: int) -> list[dict[str, Any]]:
    """The run's last `limit` commands, newest first."""
    commands = tables.commands
    query = select(commands).where(commands.c.run_id == run.id).order_by(commands.c.id.desc()).limit(limit)
    return _with_states(run, list(run.connection.execute(query)))


def one(run: RunReader, command_id: int) -> dict[str, Any] | None:
    """One command of the run, or None."""
    commands = tables.commands
    query = select(commands).where(commands.c.run_id == run.id, commands.c.id == command_id)
    return next(iter(_with_states(run, list(run.connection.execute(query)))), None)


def _with_states(run: RunReader, commands: Sequence[Any]) -> list[dict[str, Any]]:
    states = tables.command_ranks
    query = select(states).where(states.c.command_id.in_([each.id for each in commands])).order_by(states.c.rank)
    found: dict[int, list[Any]] = {each.id: [] for each in commands}
    for row in run.connection.execute(query):
        found[row.command_id].append(row)
    return [_command(run, each, found[each.id]) for each in commands]


def _command(run: RunReader, command: Any, states: Sequence[Any]) -> dict[str, Any]:
    has_expired = run.now_ns >= command.expires_ns
    return {"id": command.id} | msgspec.json.decode(command.body) | {
        "ranks": msgspec.json.decode(command.ranks), "created_ns": command.created_ns,
        "expires_ns": command.expires_ns, "withdrawn_ns": command.withdrawn_ns,
        "states": [_state(run, each, has_expired) for each in states],
    }  # fmt: skip


def _state(run: RunReader, row: Any, has_expired: bool) -> dict[str, Any]:
    is_late = row.state == "pending" and has_expired
    rank = run.ranks[row.rank]
    return {
        "rank": row.rank, "state": "expired" if is_late else row.state,
        "first_step": row.first_step, "last_step": row.last_step,
        "reason": NOT_ANSWERED if is_late else row.reason, "changed_ns": row.changed_ns,
        "live": rank.row.id == row.stream_id and run.is_live(rank),
    }  # fmt: skip
