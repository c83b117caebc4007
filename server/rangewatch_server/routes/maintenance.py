"""Routes that remove, copy out and bring in: deletion, pruning, backup, restore. docs/api.md is the contract.

Long work answers with lines of JSON while it goes on; it goes on, too, when nobody listens any more. It has a daemon
thread of its own, bounded in number, and none of those that serve pages.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from rangewatch_server.access.audit import note
from rangewatch_server.core.deadline import limited
from rangewatch_server.core.errors import ApiError, DatabaseError, answers, request_body
from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Busy
from rangewatch_server.maintenance.copies.backup import ROOM_BYTES, check_room, snapshot
from rangewatch_server.maintenance.copies.backup_file import BadBackup, open_backup
from rangewatch_server.maintenance.copies.restore import restore
from rangewatch_server.maintenance.jobs import Stopped
from rangewatch_server.maintenance.retention.background import Retention
from rangewatch_server.maintenance.retention.plan import held_bytes, planned
from rangewatch_server.maintenance.retention.policy import GB, Action, Policy
from rangewatch_server.maintenance.retention.prune import described, table_of
from rangewatch_server.maintenance.retention.runs_delete import mark_deleted
from rangewatch_server.routes.dependencies import MAX_ID, answer

router = APIRouter()

AGAIN_S = 10  # what a client that finds no place is asked to wait


class Places:
    """At most so many of one kind of work at a time. `what` is said to who comes when all are taken."""

    def __init__(self, count: int, what: str) -> None:
        self._free = threading.BoundedSemaphore(count)
        self.what = what

    def take(self) -> None:
        """Take one, to be given back from whatever thread. Raises `ApiError` 429."""
        if not self._free.acquire(blocking=False):
            raise ApiError(429, "busy", f"{self.what}; try again when it is done", AGAIN_S)

    def give_back(self) -> None:
        """Others may have it."""
        self._free.release()


async def in_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises. It goes on when nobody waits any more."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the answer: whoever waits raises it
            future.set_exception(error)

    threading.Thread(target=run, name="rangewatch-long-work", daemon=True).start()
    return await asyncio.wrap_future(future)


def streamed(work: Callable[[OnProgress], None], ended: Callable[[], None]) -> StreamingResponse:
    """Starts `work` in a thread: what it reports, line by line; then `ended` is called there.

    Lines are `{"line": ...}`, and at last `{"done": true}` or `{"error": ..., "code": ...}`.
    """
    lines = _Lines()
    thread = threading.Thread(target=lines.run, args=(work, ended), name="rangewatch-maintenance", daemon=True)
    thread.start()
    return StreamingResponse(lines.body(), media_type="application/x-ndjson")


class _Lines:
    """From the thread to the answer. As many wait as the work reports: a few for each run."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[dict[str, Any] | None]()

    def run(self, work: Callable[[OnProgress], None], ended: Callable[[], None]) -> None:
        try:
            work(lambda line: self._emit({"line": line}))
            self._emit({"done": True})
        except Exception as error:  # noqa: BLE001 - reported, and logged where nobody expected it
            self._emit(_failure(error))
        finally:
            ended()
            self._emit(None)

    def _emit(self, value: dict[str, Any] | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, value)

    async def body(self) -> AsyncIterator[bytes]:
        while (value := await self._queue.get()) is not None:
            yield msgspec.json.encode(value) + b"\n"


def _failure(error: Exception) -> dict[str, Any]:
    """The last line, when it failed."""
    if isinstance(error, BadBackup):
        return {"error": str(error), "code": "bad_backup"}
    if isinstance(error, DatabaseError):
        return {"error": str(error), "code": "database"}
    if isinstance(error, Stopped):
        return {"error": str(error), "code": "stopped"}
    if isinstance(error, SQLAlchemyError):
        return {"error": f"the database failed: {str(error).splitlines()[0]}", "code": "database"}
    logger.error("long work failed", exc_info=error)
    return {"error": "the server failed; its log says more", "code": "internal"}


_LINES = answers(200, "Lines of JSON: what is done, and at last how it ended.", "application/x-ndjson")

Folder = tempfile.TemporaryDirectory[str]
Days = Annotated[float | None, Query(gt=0, le=1e6)]
Gigabytes = Annotated[float | None, Query(ge=0, le=1e9)]
PREFIX = "rangewatch-"
SLOW_S = 60.0  # a body that sends nothing for this long is given up
LEAST_RATE = 64 << 10  # bytes a second that a body has, on the whole, after its first SLOW_S
STALLED_S = 120.0  # a client that takes nothing of a backup for this long has gone: the copy's room is needed
_copies = Places(1, "another backup is being written or sent")  # each needs the room of a whole database
_plans = Places(1, "another plan is being made")  # reads all runs: minutes with thousands of ranks
_prunes = Places(1, "the server prunes already")
_restores = Places(4, "several backups are being restored already")  # each is a file on the disk and a thread


@router.delete("/api/v1/runs/{run_id}")
async def delete_run(run_id: int, request: Request) -> Response:
    """Gone from sight at once; its rows go in the background."""
    if not 0 <= run_id < MAX_ID:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    state = request.app.state
    server_id: str = state.writer.server_id
    try:
        work = state.writer.work(lambda connection: _mark_deleted(connection, run_id, server_id), forgets=True)
        name = await asyncio.wrap_future(work)
    except Busy as error:
        raise ApiError(429, "busy", str(error), 1) from None
    if name is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    note(request, name)
    state.broker.publish([Changed(run_id, None)])
    state.retention.wake()
    return answer({"id": run_id, "name": name})


def _mark_deleted(connection: Connection, run_id: int, server_id: str) -> str | None:
    name = mark_deleted(connection, run_id)
    if name is not None:
        announce(connection, server_id, [(run_id, None)])
    return name


@router.get("/api/v1/prune")
async def show_plan(request: Request, keep_days: Days = None, keep_gb: Gigabytes = None) -> Response:
    """What would go by this policy, or by the server's own."""
    retention: Retention = request.app.state.retention
    policy = _policy(retention, keep_days, keep_gb)
    _plans.take()
    actions = await in_thread(lambda: _planned(retention, policy))
    listed = [{"run": each.run, "name": each.name, "what": described(each), "bytes": each.bytes} for each in actions]
    return answer({"actions": listed, "bytes": sum(each.bytes for each in actions), "lines": table_of(actions)})


def _planned(retention: Retention, policy: Policy) -> list[Action]:
    try:
        # Each run within the time of a request.
        return planned(retention.engines.reader, policy, retention.clock.now_ns(), limited)
    finally:
        _plans.give_back()


@router.post("/api/v1/prune", responses=_LINES)
async def prune(request: Request, keep_days: Days = None, keep_gb: Gigabytes = None) -> Response:
    """Do it now."""
    retention: Retention = request.app.state.retention
    policy = _policy(retention, keep_days, keep_gb)
    note(request, f"keep_days={policy.keep_days} keep_bytes={policy.keep_bytes}")
    _prunes.take()
    try:
        return streamed(lambda reported: retention.prune(policy, reported), _prunes.give_back)
    except BaseException:  # no thread was started
        _prunes.give_back()
        raise


def _policy(retention: Retention, keep_days: float | None, keep_gb: float | None) -> Policy:
    if keep_days is None and keep_gb is None:
        return retention.policy
    return Policy(keep_days, None if keep_gb is None else int(keep_gb * GB))


@router.get("/api/v1/backup", responses=answers(200, "The file.", "application/vnd.sqlite3"))
async def backup(request: Request) -> Response:
    """One moment of everything as a SQLite file."""
    retention: Retention = request.app.state.retention
    url: URL = request.app.state.settings.database_url
    _copies.take()
    try:
        return _Sent(await in_thread(lambda: _written(retention.engines.reader, url)))
    except BaseException:
        _copies.give_back()
        raise


class _Sent(FileResponse):
    """The copy, which goes, as its place does, when it was sent or its client has gone."""

    def __init__(self, folder: Folder) -> None:
        path = Path(folder.name) / "rangewatch-backup.db"
        super().__init__(path, media_type="application/vnd.sqlite3", filename=path.name)
        self.folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it. Raises `TimeoutError` when the client takes nothing for STALLED_S."""

        async def within_limit(message: Message) -> None:
            with anyio.fail_after(STALLED_S):
                await send(message)

        try:
            await super().__call__(scope, receive, within_limit)
        finally:
            self.folder.cleanup()
            _copies.give_back()


def _written(engine: Engine, url: URL) -> Folder:
    folder = _folder(url)
    try:
        check_room(Path(folder.name), held_bytes(engine))
        snapshot(engine, url.database or "", Path(folder.name) / "rangewatch-backup.db", lambda _: None)
    except DatabaseError as error:
        folder.cleanup()
        raise ApiError(507, "no_backup", str(error)) from None
    except BaseException:
        folder.cleanup()
        raise
    return folder


@router.put(
    "/api/v1/restore", responses=_LINES,
    openapi_extra=request_body("application/octet-stream", {"type": "string", "format": "binary"}),
)  # fmt: skip
async def restore_runs(request: Request, replace: bool = False) -> Response:
    """Add the runs of a backup, which is the body."""
    retention: Retention = request.app.state.retention
    note(request, f"replace={replace}")
    _restores.take()
    try:
        folder = _folder(request.app.state.settings.database_url)
        path = Path(folder.name) / "restored.db"
        try:
            await _receive(request, path)
            return streamed(lambda reported: _restore(retention, folder, path, replace, reported), _restores.give_back)
        except BaseException:  # a client that has gone away, too, must leave no file behind
            folder.cleanup()
            raise
    except BaseException:
        _restores.give_back()
        raise


def _restore(retention: Retention, folder: Folder, path: Path, replace: bool, reported: OnProgress) -> None:
    with folder, open_backup(path) as file, retention.alone():
        restored = restore(retention.jobs, retention.engines.reader, file, replace, reported, retention.changed)
        reported(f"{len(restored.added)} runs restored, {len(restored.skipped)} were there already")


async def _receive(request: Request, path: Path) -> None:
    """The body into a file, never more than the disk has room for."""
    try:
        size, began_s = 0, time.monotonic()
        declared = request.headers.get("content-length", "0")
        check_room(path.parent, int(declared) if declared.isdigit() else 0)
        stream = aiter(request.stream())
        with path.open("xb") as file:
            while (part := await asyncio.wait_for(anext(stream, None), SLOW_S)) is not None:
                size += len(part)
                if time.monotonic() - began_s > SLOW_S + size / LEAST_RATE:
                    raise ApiError(408, "slow_body", f"the body comes with less than {LEAST_RATE >> 10} KiB/s")
                if size // ROOM_BYTES != (size - len(part)) // ROOM_BYTES:
                    check_room(path.parent, 0)
                file.write(part)
    except DatabaseError as error:
        raise ApiError(413, "too_large", str(error)) from None
    except ClientDisconnect:
        raise ApiError(400, "disconnected", "the client went away before its body had arrived") from None
    except asyncio.TimeoutError:
        raise ApiError(408, "slow_body", f"nothing of the body arrived for {SLOW_S:.0f} s") from None


def _folder(url: URL) -> Folder:
    """A folder of its own, beside a SQLite database; else in the directory for temporary files."""
    beside = Path(url.database or ".").parent if url.get_backend_name() == "sqlite" else None
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=beside)


logger = logging.getLogger("rangewatch.server")

OnProgress = Callable[[str], None]
Result = TypeVar("Result")
