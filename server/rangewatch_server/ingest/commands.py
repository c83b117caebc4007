"""Commands to agents as the writer keeps them: stored, and those still to be answered in memory.

Every method that takes a connection runs inside the writer's transaction; `forget` drops the memory after a rollback.
A command belongs to one incarnation of each rank: a process that starts later must not do what was asked of another.

Rows of commands and of what each rank made of them: messages in, statements out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from rangewatch.wire import events
from rangewatch.wire.events import CommandAnswer
from rangewatch.wire.records import Event
from rangewatch_server.store import tables

MAX_REASON = 1_000  # characters of an agent's reason

_command, _rank = tables.commands.c, tables.command_ranks.c


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


def answered(event: Event) -> CommandAnswer | None:
    """The event's details, or None: details are free, so wrong ones are no reason to refuse a batch."""
    return events.read(CommandAnswer, event.data) if event.kind == CommandAnswer.KIND else None


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


def answer(connection: Connection, stream_id: int, reply: CommandAnswer) -> None:
    """Note what the stream said; nothing happens when it was not asked."""
    values = {
        "b_id": reply.id, "b_stream": stream_id, "b_reason": reply.reason.replace("\0", "")[:MAX_REASON],
        "b_now": time.time_ns(), "b_first_step": reply.first_step, "b_last_step": reply.last_step,
    }  # fmt: skip
    connection.execute(_ANSWERED[reply.state], values)


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


EXPIRES_S = 600.0
"""An agent begins at its next step, and a step with an evaluation or a checkpoint in it may take minutes; but a trace
that begins long after it was asked for surprises whoever pays for the steps."""
MAX_OPEN = 20  # commands of one run at once: with 40 KiB each they fit the 1 MiB of a reply that an agent reads

NO_COMMANDS: tuple[msgspec.Raw, ...] = ()


class _Open(msgspec.Struct):
    """A command that some rank has yet to answer. `streams`: rank -> the stream it is for; `waiting`: unanswered."""

    id: int
    run_id: int
    sent: msgspec.Raw
    is_for_all: bool
    world_size: int
    expires_ns: int
    streams: dict[int, int] = {}
    waiting: set[int] = set()

    def is_over(self, now_ns: int) -> bool:
        """Whether no rank gets it any more: all have answered and none is to come, or it has expired."""
        is_awaited = self.is_for_all and len(self.streams) < self.world_size
        return now_ns >= self.expires_ns or not (self.waiting or is_awaited)


class Commands:
    """The writer's view of commands: every reply asks it what to carry, so that needs no query."""

    def __init__(self) -> None:
        self._runs: dict[int, dict[int, _Open]] = {}
        self._is_loaded = False

    def forget(self) -> None:
        """Drop what is remembered: after a rollback it may never have been stored."""
        self._runs.clear()
        self._is_loaded = False

    def load(self, connection: Connection) -> None:
        """Read what is open, once: after a start of the server the agents get what was asked before."""
        if self._is_loaded:
            return
        for row in connection.execute(SELECT_OPEN, {"now_ns": time.time_ns()}):
            command = self._runs.get(row.run_id, {}).get(row.id) or self._remember(row)
            command.streams[row.rank] = row.stream_id
            if row.state == "pending":
                command.waiting.add(row.stream_id)
        self._is_loaded = True

    def waiting(self, run_id: int, stream_id: int) -> tuple[msgspec.Raw, ...]:
        """What the stream's next reply holds: JSON objects, oldest first."""
        commands = self._runs.get(run_id)
        if not commands:
            return NO_COMMANDS
        now_ns = time.time_ns()
        mine = (each.sent for each in commands.values() if stream_id in each.waiting and now_ns < each.expires_ns)
        return tuple(islice(mine, MAX_OPEN))

    def ask(self, connection: Connection, asked: Ask) -> int:
        """Store a command for the newest incarnation of each rank; its id. Raises `CommandRefused`."""
        self.expire()
        self._make_room(asked.run_id)
        streams = live_streams(connection, asked)
        if not streams:
            raise CommandRefused("not_live", "every rank that it is for has ended")
        command = self._remember(insert_command(connection, asked, EXPIRES_S))
        self._give(connection, command, streams)
        return command.id

    def withdraw(self, connection: Connection, asked: Withdraw) -> int:
        """Take back what no rank has answered yet; the command's id. Raises `CommandRefused`."""
        self.expire()
        if not has_command(connection, asked.run_id, asked.command_id):
            raise CommandRefused("unknown_command", f"this run has no command {asked.command_id}")
        if self._runs.get(asked.run_id, {}).pop(asked.command_id, None) is None:
            raise CommandRefused("not_pending", f"no rank is still to answer command {asked.command_id}")
        withdraw(connection, asked.command_id)
        return asked.command_id

    def acknowledge(self, connection: Connection, run_id: int, stream_id: int, events: Sequence[Event]) -> None:
        """Note what a batch's events say of commands."""
        for event in events:
            if (reply := answered(event)) is None:
                continue
            answer(connection, stream_id, reply)
            if (command := self._runs.get(run_id, {}).get(reply.id)) is not None:
                self._answered(command, stream_id)

    def opened(self, connection: Connection, run_id: int, rank: int, stream_id: int) -> None:
        """A rank has opened a stream: what its older process was asked is over, and what is for all is for it too."""
        end_older(connection, run_id, rank, stream_id)
        for each in self._of(run_id):
            if each.is_for_all and rank not in each.streams and not each.is_over(time.time_ns()):
                self._give(connection, each, {rank: stream_id})
            elif each.streams.get(rank, stream_id) < stream_id:
                self._answered(each, each.streams[rank])

    def ended(self, connection: Connection, run_id: int, stream_id: int) -> None:
        """The stream has said goodbye: what it has not done it never will."""
        end_stream(connection, stream_id)
        for each in self._of(run_id):
            self._answered(each, stream_id)

    def expire(self) -> list[int]:
        """Forget what is over; the runs that had such. In the database a time says what has expired."""
        now_ns = time.time_ns()
        over = [each for run_id in list(self._runs) for each in self._of(run_id) if each.is_over(now_ns)]
        for each in over:
            self._forget(each)
        return sorted({each.run_id for each in over})

    def expires_in_s(self) -> float | None:
        """Seconds until the next command expires; None when none is open."""
        next_ns = min((each.expires_ns for each in self._all()), default=None)
        return None if next_ns is None else max((next_ns - time.time_ns()) / 1e9, 0.0)

    def _all(self) -> Iterator[_Open]:
        return (each for commands in self._runs.values() for each in commands.values())

    def _of(self, run_id: int) -> list[_Open]:
        return list(self._runs.get(run_id, {}).values())

    def _remember(self, row: Any) -> _Open:
        sent = msgspec.Raw(msgspec.json.encode({"id": row.id} | msgspec.json.decode(row.body)))
        is_for_all = msgspec.json.decode(row.ranks) is None
        command = _Open(row.id, row.run_id, sent, is_for_all, row.world_size, row.expires_ns)
        self._runs.setdefault(row.run_id, {})[row.id] = command
        return command

    def _make_room(self, run_id: int) -> None:
        """For one more: a command that only ranks yet to come would still get goes, the oldest first."""
        commands = self._of(run_id)
        if len(commands) >= MAX_OPEN:
            answered = next((each for each in commands if not each.waiting), None)
            if answered is None:
                raise CommandRefused("too_many_commands", f"{MAX_OPEN} commands of this run wait for an answer already")
            self._forget(answered)

    def _give(self, connection: Connection, command: _Open, streams: dict[int, int]) -> None:
        insert_ranks(connection, command.id, streams)
        command.streams.update(streams)
        command.waiting.update(streams.values())

    def _answered(self, command: _Open, stream_id: int) -> None:
        command.waiting.discard(stream_id)
        if command.is_over(time.time_ns()):
            self._forget(command)

    def _forget(self, command: _Open) -> None:
        self._runs[command.run_id].pop(command.id, None)
        if not self._runs[command.run_id]:
            del self._runs[command.run_id]
