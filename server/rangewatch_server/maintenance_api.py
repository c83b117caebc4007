"""Routes that remove, copy out and bring in: deletion, pruning, backup, restore. docs/api.md is the contract.

Long work answers with lines of JSON while it goes on; it goes on, too, when nobody listens any more.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from rangewatch_server.api import MAX_ID, answer
from rangewatch_server.backup import ROOM_BYTES, check_room, snapshot
from rangewatch_server.backup_file import BadBackup, open_backup
from rangewatch_server.errors import ApiError
from rangewatch_server.restore import restore
from rangewatch_server.retention.background import Retention
from rangewatch_server.retention.facts import held_bytes, planned
from rangewatch_server.retention.jobs import Stopped
from rangewatch_server.retention.policy import GB, Policy
from rangewatch_server.retention.prune import described, table_of
from rangewatch_server.retention.runs_delete import mark_deleted
from rangewatch_server.store.engine import DatabaseError
from rangewatch_server.store.transaction import Changed
from rangewatch_server.store.writer import Busy

router = APIRouter()

Told = Callable[[str], None]
Days = Annotated[float | None, Query(gt=0, le=1e6)]
Gigabytes = Annotated[float | None, Query(ge=0, le=1e9)]
PREFIX = "rangewatch-"
SLOW_S = 60.0  # a body that sends nothing for this long is given up
_one_copy = threading.Lock()  # each needs the room of a whole database


@router.delete("/api/v1/runs/{run_id}")
async def delete_run(run_id: int, request: Request) -> Response:
    """Gone from sight at once; its rows go in the background."""
    if not 0 <= run_id < MAX_ID:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    state = request.app.state
    try:
        work = state.writer.work(lambda engine: _in_transaction(engine, run_id), forgets=True)
        name = await asyncio.wrap_future(work)
    except Busy as error:
        raise ApiError(429, "busy", str(error), 1) from None
    if name is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    state.broker.publish([Changed(run_id, None)])
    state.retention.wake()
    return answer({"id": run_id, "name": name})


def _in_transaction(engine: Engine, run_id: int) -> str | None:
    with engine.begin() as connection:
        return mark_deleted(connection, run_id)


@router.get("/api/v1/prune")
def show_plan(request: Request, keep_days: Days = None, keep_gb: Gigabytes = None) -> Response:
    """What would go by this policy, or by the server's own."""
    retention: Retention = request.app.state.retention
    actions = planned(retention.engines.reader, _policy(retention, keep_days, keep_gb))
    listed = [{"run": each.run, "name": each.name, "what": described(each), "bytes": each.bytes} for each in actions]
    return answer({"actions": listed, "bytes": sum(each.bytes for each in actions), "lines": table_of(actions)})


@router.post("/api/v1/prune")
async def prune(request: Request, keep_days: Days = None, keep_gb: Gigabytes = None) -> Response:
    """Do it now."""
    retention: Retention = request.app.state.retention
    policy = _policy(retention, keep_days, keep_gb)
    return _streamed(lambda told: retention.prune(policy, told))


def _policy(retention: Retention, keep_days: float | None, keep_gb: float | None) -> Policy:
    if keep_days is None and keep_gb is None:
        return retention.policy
    return Policy(keep_days, None if keep_gb is None else int(keep_gb * GB))


@router.get("/api/v1/backup")
async def backup(request: Request) -> Response:
    """One moment of everything as a SQLite file."""
    retention: Retention = request.app.state.retention
    url: URL = request.app.state.settings.database_url
    folder = await run_in_threadpool(_take, retention.engines.reader, url)
    done = BackgroundTask(folder.cleanup)
    path = Path(folder.name) / "rangewatch-backup.db"
    return FileResponse(path, media_type="application/vnd.sqlite3", filename=path.name, background=done)


def _take(engine: Engine, url: URL) -> tempfile.TemporaryDirectory[str]:
    with _copying(url) as folder:
        try:
            check_room(Path(folder.name), held_bytes(engine))
            snapshot(engine, url.database or "", Path(folder.name) / "rangewatch-backup.db", lambda _: None)
        except DatabaseError as error:
            folder.cleanup()
            raise ApiError(507, "no_backup", str(error)) from None
        return folder


@router.put("/api/v1/restore")
async def restore_runs(request: Request, replace: bool = False) -> Response:
    """Add the runs of a backup, which is the body."""
    retention: Retention = request.app.state.retention
    url: URL = request.app.state.settings.database_url
    with _copying(url) as folder:
        path = Path(folder.name) / "restored.db"
        try:
            await _receive(request, path)
        except BaseException:  # a client that has gone away, too, must leave no file behind
            folder.cleanup()
            raise
    return _streamed(lambda told: _restore(retention, folder, path, replace, told))


def _restore(
    retention: Retention, folder: tempfile.TemporaryDirectory[str], path: Path, replace: bool, told: Told
) -> None:
    with folder, open_backup(path) as file, retention.alone():
        found = restore(retention.jobs, retention.engines.reader, file, replace, told)
        told(f"{len(found.added)} runs restored, {len(found.skipped)} were there already")


async def _receive(request: Request, path: Path) -> None:
    """The body into a file, never more than the disk has room for."""
    try:
        size = 0
        declared = request.headers.get("content-length", "0")
        check_room(path.parent, int(declared) if declared.isdigit() else 0)
        stream = aiter(request.stream())
        with path.open("xb") as file:
            while (part := await asyncio.wait_for(anext(stream, None), SLOW_S)) is not None:
                size += len(part)
                if size // ROOM_BYTES != (size - len(part)) // ROOM_BYTES:
                    check_room(path.parent, 0)
                file.write(part)
    except DatabaseError as error:
        raise ApiError(413, "too_large", str(error)) from None
    except asyncio.TimeoutError:
        raise ApiError(408, "slow_body", f"nothing of the body arrived for {SLOW_S:.0f} s") from None


@contextmanager
def _copying(url: URL) -> Iterator[tempfile.TemporaryDirectory[str]]:
    """A folder of its own, beside a SQLite database; `busy` while another backup or restore is being written."""
    beside = Path(url.database or ".").parent if url.get_backend_name() == "sqlite" else None
    if not _one_copy.acquire(blocking=False):
        raise ApiError(429, "busy", "another backup or restore is being written; try again when it is done", 10)
    try:
        yield tempfile.TemporaryDirectory(prefix=PREFIX, dir=beside)
    finally:
        _one_copy.release()


def _streamed(work: Callable[[Told], None]) -> StreamingResponse:
    """Lines of JSON: `{"line": ...}` while it goes on, then `{"done": true}` or `{"error": ..., "code": ...}`."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def tell(value: dict[str, Any] | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lines.put_nowait, value)

    def run() -> None:
        try:
            work(lambda line: tell({"line": line}))
            tell({"done": True})
        except (BadBackup, DatabaseError) as error:
            tell({"error": str(error), "code": "bad_backup" if isinstance(error, BadBackup) else "database"})
        except Stopped as error:
            tell({"error": str(error), "code": "stopped"})
        except SQLAlchemyError as error:
            tell({"error": f"the database failed: {str(error).splitlines()[0]}", "code": "database"})
        finally:
            tell(None)

    async def body() -> AsyncIterator[bytes]:
        while (value := await lines.get()) is not None:
            yield msgspec.json.encode(value) + b"\n"

    threading.Thread(target=run, name="rangewatch-maintenance", daemon=True).start()
    return StreamingResponse(body(), media_type="application/x-ndjson")
