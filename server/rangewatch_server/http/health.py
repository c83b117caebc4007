"""Whether the server lives (/healthz), whether it can work (/readyz), and how much it does (/metrics).

The first two need no token, so that a load balancer may ask; what /readyz found is shown only to who may read runs.

The checks of /readyz: what was found, whether that is enough, and what to do about it.

One blocking question at a time, in a thread of its own: whoever asks waits no longer than he says.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from rangewatch.core.version import VERSION
from rangewatch_server.access.middleware import may_read
from rangewatch_server.core.errors import ApiError, answers
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.core.settings import Settings
from rangewatch_server.ingest.writer import QUEUE_MESSAGES, Writer
from rangewatch_server.store import condition
from rangewatch_server.store.condition import NETWORK_FILE_SYSTEMS, Condition, has_wal_reset_bug, newest_schema
from rangewatch_server.store.engine import Engines, first_line

OK, WARNING, FAILED = "ok", "warning", "failed"
LARGE_WAL_BYTES = 256 << 20  # it is folded back at 16 MiB: sixteen times that means that a reader holds on to it
WAL_RESET_NOTE = (
    "SQLite before 3.51.3 can lose pages when one connection writes while another resets the WAL. Here one connection "
    "does both, so it does not happen; open the file from other programs read-only"
)

# By what the database says of a write that failed, SQLite or PostgreSQL; the first that fits.
WRITE_ADVICE = {
    "lock": "another program holds a lock on the database (a shell, a backup, a migration): end it",
    "full": "make room on the disk, or prune old runs",
    "space left": "make room on the disk, or prune old runs",
    "readonly": "the file or its disk is read-only: see its owner, its mode and the mount",
    "read-only": "the database takes no writes: see whether it is a standby",
    "connect": "see whether the database runs and can be reached",
}


class Check(msgspec.Struct, frozen=True):
    """One line of /readyz. `advice` is empty when there is nothing to do."""

    name: str
    state: str
    value: str | int | None = None
    advice: str = ""


class Readings(msgspec.Struct, frozen=True):
    """What needs no database to know."""

    draining: bool
    writer_is_alive: bool
    queued: int
    damage: str | None = None
    """What the database last said of damaged pages."""


def live_details(writer: Writer, *, draining: bool, damage: str | None = None) -> Readings:
    """As it is now."""
    return Readings(draining, writer.is_alive, writer.queued, damage)


def checks(
    condition: Condition | Exception | None, written: bool | Exception | None, readings: Readings, settings: Settings
) -> list[Check]:
    """All of them. None for `condition` and `written`: no answer in time."""
    listed = [_draining(readings), _written(written, readings), _queue(readings), _pages(readings)]
    if isinstance(condition, Condition):
        listed += [_schema(condition), *_file_checks(condition, settings)]
    else:
        message = "no answer in time" if condition is None else first_line(condition)
        listed.append(Check("database", FAILED, message, "see whether the database runs and can be reached"))
    return listed


def _draining(readings: Readings) -> Check:
    if readings.draining:
        return Check("draining", FAILED, "yes", "the server is stopping; send to another, or wait for the restart")
    return Check("draining", OK, "no")


def _written(written: bool | Exception | None, readings: Readings) -> Check:
    if not readings.writer_is_alive:
        return Check("write", FAILED, "the writer has ended", "restart the server; its log says why")
    if written is None:
        advice = "the database is locked, its disk does not answer, or the queue is long: see the log and the queue"
        return Check("write", FAILED, "no answer in time", advice)
    if isinstance(written, Exception):
        message = first_line(written)
        return Check("write", FAILED, message, _write_advice(message))
    return Check("write", OK, "works")


def _queue(readings: Readings) -> Check:
    value = f"{readings.queued} of {QUEUE_MESSAGES} messages"
    if readings.queued >= QUEUE_MESSAGES:
        return Check("queue", FAILED, value, "the writer does not keep up: agents get 429 and wait; see commit seconds")
    return Check("queue", OK, value)


def _pages(readings: Readings) -> Check:
    if readings.damage is not None:
        advice = "stop the server, keep a copy of the file, restore a backup into a new one; docs/operations.md"
        return Check("pages", FAILED, readings.damage, advice)
    return Check("pages", OK, "no damage seen")


def _schema(condition: Condition) -> Check:
    if condition.schema != newest_schema():
        advice = f"this program wants {newest_schema()}: another version has migrated the database; run that one"
        return Check("schema", FAILED, condition.schema, advice)
    return Check("schema", OK, condition.schema)


def _file_checks(condition: Condition, settings: Settings) -> Iterator[Check]:
    """Those of a SQLite file."""
    if condition.free_bytes is None:
        return
    note = WAL_RESET_NOTE if has_wal_reset_bug() else ""
    yield Check("sqlite", WARNING if note else OK, sqlite3.sqlite_version, note)
    yield _room(condition.free_bytes, settings.least_free_bytes)
    wal = condition.wal_bytes or 0
    advice = "a reader holds on to it: another program that has the file open?" if wal > LARGE_WAL_BYTES else ""
    yield Check("wal_bytes", WARNING if advice else OK, wal, advice)
    advice = network_advice(condition.file_system)
    yield Check("file_system", WARNING if advice else OK, condition.file_system, advice)


def _room(free: int, least: int) -> Check:
    if free < least:
        advice = (
            f"under {least} bytes (--min-free-mib): make room, or prune old runs; under an eighth of that agents are "
            "answered 503 and keep what they have"
        )
        return Check("disk_free_bytes", FAILED, free, advice)
    return Check("disk_free_bytes", OK, free)


def network_advice(kind: str | None) -> str:
    """What to say of a SQLite file on a file system of that type; empty when it is none of a network."""
    if kind not in NETWORK_FILE_SYSTEMS:
        return ""
    return (
        f"{kind} is a network file system: SQLite's write-ahead log needs memory that only one host has, and locks "
        "that may not hold there. Put the file on a local disk, or use PostgreSQL"
    )


def _write_advice(message: str) -> str:
    hint = next(
        (advice for sign, advice in WRITE_ADVICE.items() if sign in message.lower()), "see the log, and the disk"
    )
    return f"{hint}; agents keep and resend"


Answer = TypeVar("Answer")


class BlockingCheck(Generic[Answer]):
    """Asked from the event loop only. An answer is kept for `keep_s`; a question that hangs costs one thread, ever."""

    def __init__(self, name: str, ask: Callable[[], Answer], keep_s: float) -> None:
        self._name = f"rangewatch-{name}"
        self._ask = ask
        self._keep_s = keep_s
        self._asked: Future[Answer | Exception] | None = None
        self._answered_s = 0.0

    async def within(self, seconds: float) -> Answer | Exception | None:
        """The answer, or the error of it; None when there is none yet."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._answered_s > self._keep_s):
            self._asked = Future()
            threading.Thread(target=self._run, args=(self._asked,), name=self._name, daemon=True).start()
        asked = self._asked
        await asyncio.wait([asyncio.wrap_future(asked)], timeout=seconds)
        return asked.result() if asked.done() else None

    def _run(self, asked: Future[Answer | Exception]) -> None:
        try:
            result: Answer | Exception = self._ask()
        except Exception as error:  # noqa: BLE001 - the answer: whoever asked says what it means
            result = error
        self._answered_s = time.monotonic()
        asked.set_result(result)


router = APIRouter()

WAIT_S = 1.5  # for the database and the writer, so that /readyz answers within 2 s whatever hangs
KEEP_S = 2.0  # an answer is given again for so long: anybody may ask, and each answer costs a write


class Health:
    """What the routes ask; one an application, in `app.state.health`."""

    def __init__(self, engines: Engines, writer: Writer, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.writer = writer
        self.damage = engines.damage
        self.metrics = metrics
        self.condition: BlockingCheck[Condition] = BlockingCheck(
            "condition", lambda: condition.read(engines.reader, settings.live_s), KEEP_S
        )
        self.write: BlockingCheck[bool] = BlockingCheck("write", self._write, KEEP_S)
        metrics.describe(database=engines.writer.dialect.name)
        watch = metrics.watch
        watch("rangewatch_queue_messages", "Messages waiting for the writer.", lambda: writer.queued)
        watch("rangewatch_queue_limit_messages", "Messages that may wait; then agents get 429.", lambda: QUEUE_MESSAGES)
        watch("rangewatch_unfolded_batches", "Batches in memory not all in tiles.", lambda: _unfolded(writer))
        watch("rangewatch_fold_backlog_streams", "Streams waiting for tiles.", lambda: len(writer.memory.backlog))

    async def checks(self, *, draining: bool) -> list[Check]:
        """Everything /readyz looks at, within `WAIT_S`."""
        condition, written = await asyncio.gather(self.condition.within(WAIT_S), self._written())
        readings = live_details(self.writer, draining=draining, damage=self.damage.text)
        return checks(condition, written, readings, self.settings)

    async def scrape(self) -> bytes:
        """The text of /metrics; sizes are the last known ones when the database does not answer in time."""
        condition = await self.condition.within(WAIT_S)
        if isinstance(condition, Condition):
            note = self.metrics.note
            note("rangewatch_database_bytes", "Size of the database.", condition.database_bytes)
            note("rangewatch_wal_bytes", "Size of SQLite's write-ahead log.", condition.wal_bytes)
            note("rangewatch_disk_free_bytes", "Room where the SQLite file is.", condition.free_bytes)
            note("rangewatch_live_runs", "Runs that sent something lately.", condition.live_runs)
        return self.metrics.text()

    async def _written(self) -> bool | Exception | None:
        """Whether a write works: a commit just did, or a write of nothing new does. None: no answer in time."""
        if self.metrics.has_committed_within(KEEP_S):
            return True
        if not self.writer.is_alive:
            return False
        return await self.write.within(WAIT_S)

    def _write(self) -> bool:
        self.writer.work(condition.touch).result()
        return True


@router.get("/healthz")
async def healthz(request: Request) -> Response:
    """Whether the process answers and takes messages."""
    if not request.app.state.writer.is_alive:
        raise ApiError(503, "not_writing", "the writer has ended; restart the server")
    return _answer({"status": "ok", "version": VERSION})


@router.get("/readyz", responses=answers(503, "Not ready.", "application/json"))
async def readyz(request: Request) -> Response:
    """200 or 503; with each check, its value and what to do for who may read runs."""
    health: Health = request.app.state.health
    results = await health.checks(draining=request.app.state.draining)
    ready = all(check.state != FAILED for check in results)
    status: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if may_read(request.headers, request.app.state.principals):
        status |= {"version": VERSION, "checks": results}
    return _answer(status, 200 if ready else 503)


@router.get("/metrics", responses=answers(200, "Prometheus' text format.", "text/plain"))
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    health: Health = request.app.state.health
    return Response(await health.scrape(), media_type=CONTENT_TYPE_PLAIN_0_0_4, headers={"cache-control": "no-store"})


def _unfolded(writer: Writer) -> int:
    return sum(len(stream.pending) for stream in list(writer.memory.streams.values()))


def _answer(value: Any, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"}
    )
