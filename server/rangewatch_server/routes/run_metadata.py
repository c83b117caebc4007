"""The route that changes what people say of a run: docs/api.md is the contract."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response
from sqlalchemy import Engine

from rangewatch_server.access.audit import note
from rangewatch_server.access.body import decoded, read_body
from rangewatch_server.core.errors import ApiError, request_body
from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Busy
from rangewatch_server.routes.runs import MAX_ID, answer
from rangewatch_server.store import run_metadata
from rangewatch_server.store.run_metadata import About, Change

router = APIRouter()

MAX_BODY_BYTES = 64 << 10
_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 200},
        "tags": {"type": "array", "maxItems": 20, "items": {"type": "string", "minLength": 1, "maxLength": 60}},
        "note": {"type": "string", "maxLength": 10_000},
        "archived": {"type": "boolean"},
    },
    "additionalProperties": False,
}  # fmt: skip


@router.patch("/api/v1/runs/{run_id}", openapi_extra=request_body("application/json", _SCHEMA))
async def change_run(run_id: int, request: Request) -> Response:
    """Title, tags, note, archived: what is given is set, what is left out stays."""
    wanted = decoded(await read_body(request, MAX_BODY_BYTES), Change)
    state = request.app.state
    server_id: str = state.writer.server_id
    note(request, msgspec.json.encode(wanted).decode()[:1_000])
    try:
        work = state.writer.work(lambda engine: _changed(engine, run_id, wanted, server_id))
        about = await asyncio.wrap_future(work) if 0 <= run_id < MAX_ID else None
    except Busy as error:
        raise ApiError(429, "busy", str(error), 1) from None
    if about is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    state.broker.publish([Changed(run_id, None)])
    return answer({"id": run_id, "note": about.note} | run_metadata.shown(about))


def _changed(engine: Engine, run_id: int, wanted: Change, server_id: str) -> About | None:
    with engine.begin() as connection:
        about = run_metadata.change(connection, run_id, wanted)
        if about is not None:
            announce(connection, server_id, [(run_id, None)])
        return about
