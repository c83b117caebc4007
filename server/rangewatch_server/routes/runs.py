"""Runs, what people say of them, their tensors and steps. docs/api.md is the contract."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from rangewatch_server.access.audit import note
from rangewatch_server.access.body import decoded, read_body
from rangewatch_server.core.errors import ApiError, request_body
from rangewatch_server.figures.heatmaps.rows import MOST_LISTED
from rangewatch_server.figures.name_filter import chosen
from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Busy
from rangewatch_server.query.reader import RunReader, last_step
from rangewatch_server.routes.dependencies import (
    ALL_RANKS,
    MAX_ID,
    MAX_PATH,
    RunId,
    Step,
    answer,
    check_tensor,
    damaged_in,
    kinds_of,
    rank_of,
    ranks_of,
    reading,
    reading_run,
    steps_of,
)
from rangewatch_server.rules.batch_rows import rows_of
from rangewatch_server.store import run_metadata
from rangewatch_server.store.run_metadata import About, Change
from rangewatch_server.views import extremes, overview, report, run_list
from rangewatch_server.views.module_sources import ModuleSources

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


@router.get("/api/v1/runs")
def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=run_list.MOST)] = run_list.LIMIT,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    offset: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    q: Annotated[str, Query(max_length=200)] = "",
    archived: bool | None = None,
    sort: run_list.Sort = "newest",
    down: bool = False,
    state: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Runs a page at a time."""
    unknown = next((each for each in state or () if each not in run_list.STATES), None)
    if unknown is not None:
        raise ApiError(422, "bad_parameter", f"state {unknown[:40]!r} is not one of {', '.join(run_list.STATES)}")
    wanted = run_list.Listing(limit, before, offset, q, archived, sort, down, tuple(state or ()))
    with reading(request) as reader:
        page = run_list.page(reader, wanted)
    address = request.app.state.settings.address
    return answer({"now_ns": time.time_ns(), "address": address, **page})


@router.get("/api/v1/runs/{run_id}")
def show_run(run_id: RunId, request: Request) -> Response:
    """One run with its ranks and verdict."""
    with reading_run(request, run_id) as run:
        return answer(overview.run_detail(run) | {"now_ns": time.time_ns()})


@router.patch("/api/v1/runs/{run_id}", openapi_extra=request_body("application/json", _SCHEMA))
async def change_run(run_id: int, request: Request) -> Response:
    """Title, tags, note, archived: what is given is set, what is left out stays."""
    wanted = decoded(await read_body(request, MAX_BODY_BYTES), Change)
    state = request.app.state
    server_id: str = state.writer.server_id
    note(request, msgspec.json.encode(wanted).decode()[:1_000])
    try:
        work = state.writer.work(lambda connection: _changed(connection, run_id, wanted, server_id))
        about = await asyncio.wrap_future(work) if 0 <= run_id < MAX_ID else None
    except Busy as error:
        raise ApiError(429, "busy", str(error), 1) from None
    if about is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    state.broker.publish([Changed(run_id, None)])
    return answer({"id": run_id, "note": about.note} | run_metadata.shown(about))


def _changed(connection: Connection, run_id: int, wanted: Change, server_id: str) -> About | None:
    about = run_metadata.change(connection, run_id, wanted)
    if about is not None:
        announce(connection, server_id, [(run_id, None)])
    return about


@router.get("/api/v1/runs/{run_id}/tensors")
def list_tensors(
    run_id: RunId, request: Request, kind: Annotated[list[str] | None, Query()] = None, q: str = ""
) -> Response:
    """The run's tensors in call order."""
    with reading_run(request, run_id) as run:
        tensors = run.names().tensors
        order = chosen(tensors, kinds_of(kind), q)
        sources = ModuleSources(run)
        details = [extremes.tensor_details(int(each), tensors) | sources.of(tensors.entries[each]) for each in order]
        return answer({"tensors": details})


@router.get("/api/v1/runs/{run_id}/step")
def show_step(
    run_id: RunId,
    request: Request,
    step: Step = None,
    rank: int | None = None,
    report_frames: Annotated[int, Query(ge=1, le=report.MAX_FRAMES)] = report.FRAMES,
) -> Response:
    """The frames of one rank and step."""
    with reading_run(request, run_id) as run:
        if not run.ranks or run.last_step is None or run.first_step is None:
            return answer({"step": None, "rank": None, "observed": False, "frames": [], "ranks": sorted(run.ranks)})
        at = rank_of(run, rank)
        step = step if step is not None else last_step(run.ranks[at]) or 0
        return answer(_step(run, at, step, run.first_step, run.last_step, report_frames) | damaged_in(run))


def _step(run: RunReader, rank: int, step: int, first: int, last: int, report_frames: int) -> dict[str, Any]:
    frames = extremes.frames(run, rank, step)
    bad = extremes.first_bad(frames)
    return {
        "step": step, "rank": rank, "first_step": first, "last_step": last, "ranks": sorted(run.ranks),
        "batch": None if (rows := rows_of(run, rank, step)) is None else msgspec.to_builtins(rows),
        "observed": bool(frames), "frames": frames, "first_nonfinite": bad,
        "previous_nonfinite_step": extremes.nonfinite_step(run, rank, first, step, last=True),
        "next_nonfinite_step": extremes.nonfinite_step(run, rank, step + 1, last + 1, last=False),
        "report": report.text(run.name, rank, step, frames, bad, extremes.other_values(run, rank, step), report_frames),
    } | extremes.step_details(run, rank, step)  # fmt: skip


@router.get("/api/v1/runs/{run_id}/locate")
def locate(
    run_id: RunId,
    request: Request,
    start: Step = None,
    stop: Step = None,
    rank: str = ALL_RANKS,
    tensor: str = "",
    kind: Annotated[list[str] | None, Query()] = None,
    q: str = "",
    module: Annotated[str, Query(max_length=MAX_PATH)] = "",
) -> Response:
    """The exact place of the worst value in a rectangle."""
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        place = (
            extremes.locate(run, ranks_of(run, rank), low, high, _rows(run, tensor, kinds_of(kind), q, module))
            if low < high
            else None
        )
        if place is None:
            raise ApiError(404, "nothing_there", "nothing was observed there")
        return answer(msgspec.structs.asdict(place) | damaged_in(run))


def _rows(run: RunReader, tensor: str, kinds: tuple[str, ...], q: str, module: str) -> Any:
    order = chosen(run.names().tensors, kinds, q, module)
    if not tensor:
        return np.sort(order)
    if "," in tensor:
        return np.intersect1d(order, _listed(run, tensor))
    first, _, last = tensor.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or len(tensor) > 20:
        raise ApiError(422, "bad_parameter", "tensor must be a number, first-last, or numbers with commas between")
    check_tensor(run, int(first))
    check_tensor(run, int(last or first))
    ends = np.flatnonzero((order == int(first)) | (order == int(last or first)))
    return np.sort(order[ends[0] : ends[-1] + 1]) if len(ends) else order[:0]


def _listed(run: RunReader, text: str) -> list[int]:
    numbers = text.split(",")
    if len(numbers) > MOST_LISTED or not all(
        each.isascii() and each.isdecimal() and len(each) < 10 for each in numbers
    ):
        raise ApiError(422, "bad_parameter", f"tensor may list {MOST_LISTED} numbers at most")
    for each in numbers:
        check_tensor(run, int(each))
    return [int(each) for each in numbers]
