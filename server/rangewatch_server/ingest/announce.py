"""Several servers on one PostgreSQL database: each informs the others, by NOTIFY, which runs its commits changed.

`announce` runs inside the writer's transaction, so that nothing is announced that was not committed. `Listener` has a
connection and a daemon thread of its own. A payload is untrusted: whoever may connect to the database may send one.
SQLite has one server only (store/engine.py) and nothing to announce.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
import psycopg
from sqlalchemy import Connection, Engine, text

logger = logging.getLogger("rangewatch.server")

CHANNEL = "rangewatch"
PAYLOAD_BYTES = 7_900  # PostgreSQL takes less than 8000
ENTRIES = 100  # runs in one payload: 45 bytes each at most, and 20 for the same run's commands
POLL_S = 0.5  # how soon `stop` is heard
GATHER_S = 0.05  # notifications that come within this are passed on as one
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0  # between attempts to connect
OVERLAP_NS = 60 * 10**9  # clocks of servers may differ by this when what was missed is looked up
MOST_MISSED = 10_000  # runs announced after a gap, the newest

# Half-open connections are given up after about 25 s: no server says anything on an idle one.
KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
NAME = "rangewatch listener"  # in pg_stat_activity
CONNECT: dict[str, Any] = {"connect_timeout": 5, "autocommit": True, "application_name": NAME} | KEEPALIVE

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")
_MISSED = (
    "SELECT run_id, max(last_step) FROM streams WHERE last_seen_ns >= %s GROUP BY run_id "  # noqa: S608
    f"ORDER BY max(last_seen_ns) DESC LIMIT {MOST_MISSED}"
)

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Change = tuple[Number, Number | None]


class _Announced(msgspec.Struct, frozen=True):
    """One payload. `changes`: run and last step; `commands`: runs whose commands changed."""

    server: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    changes: Annotated[list[Change], msgspec.Meta(max_length=ENTRIES)] = []
    commands: Annotated[list[Number], msgspec.Meta(max_length=ENTRIES)] = []


def announce(
    connection: Connection, server_id: str, changes: Iterable[tuple[int, int | None]], commands: Iterable[int] = ()
) -> None:
    """Tell the other servers with this transaction's commit. Does nothing on SQLite, or when nothing changed."""
    if connection.dialect.name != "postgresql":
        return
    for payload in payloads(server_id, list(changes), sorted(set(commands))):
        connection.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})


def payloads(server_id: str, changes: list[tuple[int, int | None]], commands: list[int]) -> list[str]:
    """The JSON texts for these changes, each under `PAYLOAD_BYTES`."""
    payloads = []
    for low in range(0, max(len(changes), len(commands)), ENTRIES):
        part = slice(low, low + ENTRIES)
        payload = msgspec.json.encode(_Announced(server_id, changes[part], commands[part])).decode()
        assert len(payload) <= PAYLOAD_BYTES
        payloads.append(payload)
    return payloads


class Listener:
    """Passes on what other servers announce. The callbacks run in its thread.

    `on_changes` gets runs with their last step; `on_commands` the runs whose commands changed, or None: any may have.
    """

    def __init__(
        self, engine: Engine, server_id: str, on_changes: Callable[[list[tuple[int, int | None]]], None],
        on_commands: Callable[[list[int] | None], None],
    ) -> None:  # fmt: skip
        arguments, self._options = engine.dialect.create_connect_args(engine.url)
        self._conninfo = str(arguments[0]) if arguments else ""
        self._server_id = server_id
        self._on_changes = on_changes
        self._on_commands = on_commands
        self._missed_since_ns = time.time_ns()
        self._wait_s = FIRST_WAIT_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rangewatch-listener", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it; a connection attempt in progress is left to itself."""
        self._ended.set()
        self._thread.join(POLL_S * 4)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._conninfo, **{**self._options, **CONNECT}) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._catch_up(connection)
                    self._listen(connection)
            except psycopg.Error as error:
                logger.warning("other servers cannot be heard: %s", str(error).strip().partition("\n")[0])
                self._ended.wait(self._wait_s * random.uniform(0.5, 1.0))
                self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)

    def _catch_up(self, connection: psycopg.Connection) -> None:
        """Pass on what may have changed while nothing was heard: after `LISTEN`, so that there is no gap between."""
        rows = connection.execute(_MISSED, (self._missed_since_ns - OVERLAP_NS,)).fetchall()
        self._pass_on([(run, step) for run, step in rows], None)
        self._wait_s = FIRST_WAIT_S

    def _listen(self, connection: psycopg.Connection) -> None:
        while not self._ended.is_set():
            heard = list(connection.notifies(timeout=POLL_S, stop_after=1))
            self._missed_since_ns = time.time_ns()
            if heard:
                time.sleep(GATHER_S)
                heard += connection.notifies(timeout=0)
                self._hear([each.payload for each in heard])

    def _hear(self, heard: list[str]) -> None:
        changes: dict[int, int | None] = {}
        commands: set[int] = set()
        for payload in heard:
            try:
                announced = msgspec.json.decode(payload, type=_Announced)
            except (msgspec.DecodeError, UnicodeError):
                logger.warning("a notification on channel %s is not from a Rangewatch server", CHANNEL)
                continue
            if announced.server != self._server_id:
                changes.update(announced.changes)
                commands.update(announced.commands)
        self._pass_on(list(changes.items()), sorted(commands))

    def _pass_on(self, changes: list[tuple[int, int | None]], commands: list[int] | None) -> None:
        try:
            if changes:
                self._on_changes(changes)
            if commands is None or commands:
                self._on_commands(commands)
        except Exception:
            logger.exception("a change that another server announced was not passed on")
