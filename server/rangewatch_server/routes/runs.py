"""GET routes, thin: parameters -> queries -> figures -> JSON bytes. docs/api.md is the contract."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Request, Response

from rangewatch.wire.records import KINDS
from rangewatch_server.core.deadline import limited
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.layers import chosen
from rangewatch_server.figures.rows import MOST_LISTED
from rangewatch_server.query.reader import Queries, Reader, RunReader, last_step
from rangewatch_server.store.batch_checks import MAX_STEP
from rangewatch_server.views import extremes, overview, report, run_list
from rangewatch_server.views.module_sources import ModuleSources

router = APIRouter()

Step = Annotated[int | None, Query(ge=0, le=MAX_STEP + 1)]
RunId = int
MAX_ID = 2**62
MAX_PATH = 4_096  # letters of a module's path
ALL_RANKS = "all"
MAX_DAMAGED = 100  # stored tiles that a reply names; it counts all


def as_json(value: Any) -> bytes:
    """Bytes become base64, and NaN and Inf null."""
    return msgspec.json.encode(value)


def answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(as_json(value), status, media_type="application/json", headers={"cache-control": "no-store"})


@contextmanager
def reading(request: Request) -> Iterator[Reader]:
    """One consistent view of the database for one request."""
    queries: Queries = request.app.state.queries
    with queries.read() as reader, limited(reader.connection):
        yield reader


@contextmanager
def reading_run(request: Request, run_id: int) -> Iterator[RunReader]:
    """The run, or 404; with `incarnation=` in the query as it was before later restarts."""
    with reading(request) as reader:
        yield run_of(request, reader, run_id)


def run_of(request: Request, reader: Reader, run_id: int) -> RunReader:
    """As `reading_run`, of a reader that is open."""
    incarnation = request.query_params.get("incarnation")
    if incarnation is not None and not (incarnation.isascii() and incarnation.isdecimal() and len(incarnation) <= 9):
        raise ApiError(422, "bad_parameter", "incarnation must be a whole number from 1")
    run = reader.run(run_id) if 0 <= run_id < MAX_ID else None
    if run is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    if incarnation is not None:
        run.as_of(int(incarnation))
    return run


@router.get("/api/v1/runs")
def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=run_list.MOST)] = run_list.LIMIT,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
    offset: Annotated[int, Query(ge=0, le=MAX_ID)] = 0,
    q: Annotated[str, Query(max_length=200)] = "",
    archived: bool | None = None,
    sort: Literal["newest", "oldest", "name", "seen"] = "newest",
) -> Response:
    """Runs a page at a time."""
    with reading(request) as reader:
        found = run_list.page(reader, run_list.Listing(limit, before, offset, q, archived, sort))
    address = request.app.state.settings.address
    return answer({"now_ns": time.time_ns(), "address": address, **found})


@router.get("/api/v1/runs/{run_id}")
def show_run(run_id: RunId, request: Request) -> Response:
    """One run with its ranks and verdict."""
    with reading_run(request, run_id) as run:
        return answer(overview.run_detail(run) | {"now_ns": time.time_ns()})


@router.get("/api/v1/runs/{run_id}/tensors")
def list_tensors(
    run_id: RunId, request: Request, kind: Annotated[list[str] | None, Query()] = None, q: str = ""
) -> Response:
    """The run's tensors in call order."""
    with reading_run(request, run_id) as run:
        tensors = run.names().tensors
        order = chosen(tensors, kinds_of(kind), q)
        sources = ModuleSources(run)
        reported = [extremes.tensor_facts(int(each), tensors) | sources.facts(tensors.entries[each]) for each in order]
        return answer({"tensors": reported})


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
        at = _rank(run, rank)
        step = step if step is not None else last_step(run.ranks[at]) or 0
        return answer(_step(run, at, step, run.first_step, run.last_step, report_frames) | damaged_in(run))


def _step(run: RunReader, rank: int, step: int, first: int, last: int, report_frames: int) -> dict[str, Any]:
    found = extremes.frames(run, rank, step)
    bad = extremes.first_bad(found)
    return {
        "step": step, "rank": rank, "first_step": first, "last_step": last, "ranks": sorted(run.ranks),
        "observed": bool(found), "frames": found, "first_nonfinite": bad,
        "previous_nonfinite_step": extremes.nonfinite_step(run, rank, first, step, last=True),
        "next_nonfinite_step": extremes.nonfinite_step(run, rank, step + 1, last + 1, last=False),
        "report": report.text(run.name, rank, step, found, bad, extremes.other_values(run, rank, step), report_frames),
    } | extremes.step_facts(run, rank, step)  # fmt: skip


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
        found = (
            extremes.locate(run, ranks_of(run, rank), low, high, _rows(run, tensor, kinds_of(kind), q, module))
            if low < high
            else None
        )
        if found is None:
            raise ApiError(404, "nothing_there", "nothing was observed there")
        return answer(msgspec.structs.asdict(found) | damaged_in(run))


def damaged_in(run: RunReader) -> dict[str, Any]:
    """What could not be read for this reply, for `meta` or the reply itself; nothing when all could."""
    found = sorted(run.damage, key=lambda each: (each.level, each.start, each.rank, each.part))
    shown = [
        {"rank": each.rank, "part": each.part, "level": each.level}
        | {"first_step": each.start, "last_step": each.stop - 1}
        for each in found[:MAX_DAMAGED]
    ]
    return {"damaged": shown, "damaged_tiles": len(found)} if found else {}


def steps_of(run: RunReader, start: int | None, stop: int | None) -> tuple[int, int]:
    """The steps asked for, cut to those there are."""
    first, last = run.first_step or 0, -1 if run.last_step is None else run.last_step
    low = first if start is None else max(start, first)
    high = last + 1 if stop is None else min(stop, last + 1)
    return low, max(high, low)


def _rank(run: RunReader, rank: int | None) -> int:
    if rank is None:
        return min(run.ranks)
    if rank not in run.ranks:
        raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
    return rank


def ranks_of(run: RunReader, rank: str) -> list[int]:
    """The ranks that the text names. Raises `ApiError`."""
    if rank == ALL_RANKS:
        return sorted(run.ranks)
    if not rank.isdecimal() or len(rank) > 9:
        raise ApiError(422, "bad_parameter", "rank must be a number or all")
    return [_rank(run, int(rank))]


def kinds_of(kinds: list[str] | None) -> tuple[str, ...]:
    """The kinds asked for, none: all. Raises `ApiError` 422."""
    unknown = [kind for kind in kinds or [] if kind not in KINDS]
    if unknown:
        raise ApiError(422, "bad_parameter", f"kind {unknown[0][:40]!r} is not one of {', '.join(KINDS)}")
    return tuple(kinds or ())


def check_tensor(run: RunReader, tensor: int | None) -> None:
    """Raises `ApiError` 404 where the run has no such tensor."""
    if tensor is None or not 0 <= tensor < len(run.names().tensors.entries):
        raise ApiError(404, "unknown_tensor", f"run {run.id} has no tensor {tensor}")


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
