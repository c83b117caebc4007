"""Rows of commands and of what each rank made of them: messages in, statements out. Only `commands.py` uses it."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from rangewatch.records import Event
from rangewatch_server.store import tables
from rangewatch_server.store.checks import MAX_STEP

MAX_REASON = 1_000  # characters of an agent's reason

_command, _rank = tables.commands.c, tables.command_ranks.c
_Step = Annotated[int, msgspec.Meta(ge=-1, le=MAX_STEP)]


class Ask(msgspec.Struct, frozen=True):
    """A command to be stored: `body` is the JSON object that agents get, without its id; `ranks` None for all."""

    run_id: int
    body: dict[str, Any]
    ranks: tuple[int, ...] | None
    world_size: int


class Withdraw(msgspec.Struct, frozen=True):
    """A command that those ranks that have not answered shall not get any more."""

    run_id: int
    command_id: int


class CommandRefused(Exception):
    """The command cannot be stored or withdrawn; `code` as in docs/api.md."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Acknowledgement(msgspec.Struct, frozen=True):
    """The details of an event `command` (docs/wire.md)."""

    id: Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
    state: Literal["accepted", "done", "refused"]
    first_step: _Step | None = None
    last_step: _Step | None = None
    reason: str = ""


SELECT_OPEN = (
    select(tables.commands, _rank.rank, _rank.stream_id, _rank.state)
    .join(tables.command_ranks, _rank.command_id == _command.id)
    .where(_command.withdrawn_ns.is_(None), _command.expires_ns > bindparam("now_ns"))
    .order_by(_command.id)
)


_NEW = {name: bindparam(f"b_{name}", type_=_rank[name].type) for name in ("first_step", "last_step")}


def _answered(state: Any, after: tuple[str, ...], steps: dict[str, Any]) -> Any:
    return (
        update(tables.command_ranks)
        .where(_rank.command_id == bindparam("b_id"), _rank.stream_id == bindparam("b_stream"), _rank.state.in_(after))
        .values(state=state, reason=bindparam("b_reason"), changed_ns=bindparam("b_now"), **steps)
    )


# Batches come in any order: `accepted` never replaces `done`, it only adds the steps that `done` did not say. And late
# or not, what was done was done.
_SAID_FIRST = {name: func.coalesce(_rank[name], new) for name, new in _NEW.items()}
_SAID_LAST = {name: func.coalesce(new, _rank[name]) for name, new in _NEW.items()}
_ENDS = ("pending", "accepted", "withdrawn", "expired")
_ANSWERED = {
    "accepted": _answered(
        case((_rank.state == "done", "done"), else_="accepted"), ("pending", "withdrawn", "done"), _SAID_FIRST
    ),
    "done": _answered("done", _ENDS, _SAID_LAST),
    "refused": _answered("refused", _ENDS, _SAID_LAST),
}


def acknowledgement(event: Event) -> Acknowledgement | None:
    """The event's details, or None: details are free, so wrong ones are no reason to refuse a batch."""
    try:
        return msgspec.convert(event.data, Acknowledgement) if event.kind == "command" else None
    except msgspec.ValidationError:
        return None


def insert_command(connection: Connection, asked: Ask, expires_s: float) -> Any:
    """The new row of `commands`."""
    now_ns = time.time_ns()
    values = {
        "run_id": asked.run_id, "body": msgspec.json.encode(asked.body), "ranks": msgspec.json.encode(asked.ranks),
        "world_size": asked.world_size, "created_ns": now_ns, "expires_ns": now_ns + int(expires_s * 1e9),
    }  # fmt: skip
    return connection.execute(insert(tables.commands).values(values).returning(tables.commands)).one()


def insert_ranks(connection: Connection, command_id: int, streams: dict[int, int]) -> None:
    """A pending row for each rank and its stream."""
    now_ns = time.time_ns()
    rows = [
        {"command_id": command_id, "rank": rank, "stream_id": stream_id, "changed_ns": now_ns}
        for rank, stream_id in streams.items()
    ]
    connection.execute(insert(tables.command_ranks), rows)


def answer(connection: Connection, stream_id: int, said: Acknowledgement) -> None:
    """Note what the stream said; nothing happens when it was not asked."""
    values = {
        "b_id": said.id, "b_stream": stream_id, "b_reason": said.reason.replace("\0", "")[:MAX_REASON],
        "b_now": time.time_ns(), "b_first_step": said.first_step, "b_last_step": said.last_step,
    }  # fmt: skip
    connection.execute(_ANSWERED[said.state], values)


def withdraw(connection: Connection, command_id: int) -> None:
    """Mark the command, and the ranks that have not answered."""
    now_ns = time.time_ns()
    connection.execute(update(tables.commands).where(_command.id == command_id).values(withdrawn_ns=now_ns))
    unanswered = (_rank.command_id == command_id) & (_rank.state == "pending")
    connection.execute(update(tables.command_ranks).where(unanswered).values(state="withdrawn", changed_ns=now_ns))


def end_stream(connection: Connection, stream_id: int) -> None:
    """The stream has said goodbye: what it has not done it never will."""
    _end(connection, _rank.stream_id == stream_id, "the process ended first")


def end_older(connection: Connection, run_id: int, rank: int, stream_id: int) -> None:
    """The rank has a newer process: what the older ones have not done they never will."""
    streams = tables.streams.c
    older = select(streams.id).where(streams.run_id == run_id, streams.rank == rank, streams.id < stream_id)
    _end(connection, _rank.stream_id.in_(older), "the process started anew")


def _end(connection: Connection, which: Any, reason: str) -> None:
    unfinished = which & _rank.state.in_(("pending", "accepted"))
    values = {"state": "expired", "reason": reason, "changed_ns": time.time_ns()}
    connection.execute(update(tables.command_ranks).where(unfinished).values(values))


def has_command(connection: Connection, run_id: int, command_id: int) -> bool:
    """Whether the run was ever asked that."""
    query = select(_command.id).where(_command.id == command_id, _command.run_id == run_id)
    return connection.execute(query).first() is not None


def live_streams(connection: Connection, asked: Ask) -> dict[int, int]:
    """Rank -> its newest stream, of those asked for that have not said goodbye."""
    streams = tables.streams.c
    query = select(streams.rank, streams.id, streams.state).where(streams.run_id == asked.run_id)
    newest = {row.rank: row for row in connection.execute(query.order_by(streams.ordinal))}
    wanted = newest if asked.ranks is None else asked.ranks
    return {rank: newest[rank].id for rank in wanted if rank in newest and newest[rank].state == "open"}
