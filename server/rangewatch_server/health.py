"""Whether the server lives (/healthz), whether it can work (/readyz), and how much it does (/metrics).

The first two need no token, so that a load balancer may ask; what /readyz found is told only to who may read runs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from rangewatch import __version__
from rangewatch_server.access import may_read
from rangewatch_server.errors import ApiError, answers
from rangewatch_server.look import Look
from rangewatch_server.measures import Measures
from rangewatch_server.readiness import FAILED, Check, checks, live_facts
from rangewatch_server.settings import Settings
from rangewatch_server.store import condition
from rangewatch_server.store.condition import Condition
from rangewatch_server.store.engine import Engines
from rangewatch_server.store.writer import QUEUE_MESSAGES, Writer

router = APIRouter()

WAIT_S = 1.5  # for the database and the writer, so that /readyz answers within 2 s whatever hangs
KEEP_S = 2.0  # what was found is told again for so long: anybody may ask, and each answer costs a write


class Health:
    """What the routes ask; one an application, in `app.state.health`."""

    def __init__(self, engines: Engines, writer: Writer, settings: Settings, measures: Measures) -> None:
        self.settings = settings
        self.writer = writer
        self.measures = measures
        self.condition: Look[Condition] = Look(
            "condition", lambda: condition.read(engines.reader, settings.live_s), KEEP_S
        )
        self.write: Look[bool] = Look("write", self._write, KEEP_S)
        measures.describe(database=engines.writer.dialect.name)
        watch = measures.watch
        watch("rangewatch_queue_messages", "Messages waiting for the writer.", lambda: writer.queued)
        watch("rangewatch_queue_limit_messages", "Messages that may wait; then agents get 429.", lambda: QUEUE_MESSAGES)
        watch("rangewatch_unfolded_batches", "Batches in memory not all in tiles.", lambda: _unfolded(writer))
        watch("rangewatch_fold_backlog_streams", "Streams waiting for tiles.", lambda: len(writer.memory.backlog))

    async def checks(self, *, draining: bool) -> list[Check]:
        """Everything /readyz looks at, within `WAIT_S`."""
        found, written = await asyncio.gather(self.condition.within(WAIT_S), self._written())
        facts = live_facts(self.writer, draining=draining)
        return checks(found, written, facts, self.settings)

    async def scrape(self) -> bytes:
        """The text of /metrics; sizes are the last known ones when the database does not answer in time."""
        found = await self.condition.within(WAIT_S)
        if isinstance(found, Condition):
            note = self.measures.note
            note("rangewatch_database_bytes", "Size of the database.", found.database_bytes)
            note("rangewatch_wal_bytes", "Size of SQLite's write-ahead log.", found.wal_bytes)
            note("rangewatch_disk_free_bytes", "Room where the SQLite file is.", found.free_bytes)
            note("rangewatch_live_runs", "Runs that sent something lately.", found.live_runs)
        return self.measures.text()

    async def _written(self) -> bool | Exception | None:
        """Whether a write works: a commit just did, or a write of nothing new does. None: no answer in time."""
        if self.measures.has_committed_within(KEEP_S):
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
    return _answer({"status": "ok", "version": __version__})


@router.get("/readyz", responses=answers(503, "Not ready.", "application/json"))
async def readyz(request: Request) -> Response:
    """200 or 503; with each check, its value and what to do for who may read runs."""
    health: Health = request.app.state.health
    found = await health.checks(draining=request.app.state.draining)
    ready = all(check.state != FAILED for check in found)
    said: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if may_read(request.headers, request.app.state.callers):
        said |= {"version": __version__, "checks": found}
    return _answer(said, 200 if ready else 503)


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
