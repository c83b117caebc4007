"""Commands to agents as the writer keeps them: stored, and those still to be answered in memory.

Every method that takes a connection runs inside the writer's transaction; `forget` drops the memory after a rollback.
A command belongs to one incarnation of each rank: a process that starts later must not do what was asked of another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection

from rangewatch.records import Event
from rangewatch_server.store import command_rows as rows
from rangewatch_server.store.command_rows import Ask, CommandRefused, Withdraw

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
        for row in connection.execute(rows.SELECT_OPEN, {"now_ns": time.time_ns()}):
            found = self._runs.get(row.run_id, {}).get(row.id) or self._remember(row)
            found.streams[row.rank] = row.stream_id
            if row.state == "pending":
                found.waiting.add(row.stream_id)
        self._is_loaded = True

    def waiting(self, run_id: int, stream_id: int) -> tuple[msgspec.Raw, ...]:
        """What the stream's next reply holds: JSON objects, oldest first."""
        found = self._runs.get(run_id)
        if not found:
            return NO_COMMANDS
        now_ns = time.time_ns()
        mine = (each.sent for each in found.values() if stream_id in each.waiting and now_ns < each.expires_ns)
        return tuple(islice(mine, MAX_OPEN))

    def ask(self, connection: Connection, asked: Ask) -> int:
        """Store a command for the newest incarnation of each rank; its id. Raises `CommandRefused`."""
        self.expire()
        self._make_room(asked.run_id)
        streams = rows.live_streams(connection, asked)
        if not streams:
            raise CommandRefused("not_live", "every rank that it is for has ended")
        command = self._remember(rows.insert_command(connection, asked, EXPIRES_S))
        self._give(connection, command, streams)
        return command.id

    def withdraw(self, connection: Connection, asked: Withdraw) -> int:
        """Take back what no rank has answered yet; the command's id. Raises `CommandRefused`."""
        self.expire()
        if not rows.has_command(connection, asked.run_id, asked.command_id):
            raise CommandRefused("unknown_command", f"this run has no command {asked.command_id}")
        if self._runs.get(asked.run_id, {}).pop(asked.command_id, None) is None:
            raise CommandRefused("not_pending", f"no rank is still to answer command {asked.command_id}")
        rows.withdraw(connection, asked.command_id)
        return asked.command_id

    def acknowledge(self, connection: Connection, run_id: int, stream_id: int, events: Sequence[Event]) -> None:
        """Note what a batch's events say of commands."""
        for event in events:
            if (said := rows.acknowledgement(event)) is None:
                continue
            rows.answer(connection, stream_id, said)
            if (found := self._runs.get(run_id, {}).get(said.id)) is not None:
                self._answered(found, stream_id)

    def opened(self, connection: Connection, run_id: int, rank: int, stream_id: int) -> None:
        """A rank has opened a stream: what its older process was asked is over, and what is for all is for it too."""
        rows.end_older(connection, run_id, rank, stream_id)
        for each in self._of(run_id):
            if each.is_for_all and rank not in each.streams and not each.is_over(time.time_ns()):
                self._give(connection, each, {rank: stream_id})
            elif each.streams.get(rank, stream_id) < stream_id:
                self._answered(each, each.streams[rank])

    def ended(self, connection: Connection, run_id: int, stream_id: int) -> None:
        """The stream has said goodbye: what it has not done it never will."""
        rows.end_stream(connection, stream_id)
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
        return (each for found in self._runs.values() for each in found.values())

    def _of(self, run_id: int) -> list[_Open]:
        return list(self._runs.get(run_id, {}).values())

    def _remember(self, row: Any) -> _Open:
        sent = msgspec.Raw(msgspec.json.encode({"id": row.id} | msgspec.json.decode(row.body)))
        is_for_all = msgspec.json.decode(row.ranks) is None
        found = _Open(row.id, row.run_id, sent, is_for_all, row.world_size, row.expires_ns)
        self._runs.setdefault(row.run_id, {})[row.id] = found
        return found

    def _make_room(self, run_id: int) -> None:
        """For one more: a command that only ranks yet to come would still get goes, the oldest first."""
        found = self._of(run_id)
        if len(found) >= MAX_OPEN:
            answered = next((each for each in found if not each.waiting), None)
            if answered is None:
                raise CommandRefused("too_many_commands", f"{MAX_OPEN} commands of this run wait for an answer already")
            self._forget(answered)

    def _give(self, connection: Connection, command: _Open, streams: dict[int, int]) -> None:
        rows.insert_ranks(connection, command.id, streams)
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
