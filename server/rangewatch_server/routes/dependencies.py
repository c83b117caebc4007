"""What routes share: a run's reader, its steps, ranks and tensors as a request names them, and answers as JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rangewatch.wire.records import KINDS
from rangewatch_server.core.deadline import limited
from rangewatch_server.core.errors import ApiError, BrokenOff
from rangewatch_server.query.reader import Queries, Reader, RunReader
from rangewatch_server.store.batch_checks import MAX_STEP
from rangewatch_server.store.tiles import TileError

logger = logging.getLogger("rangewatch.server")

Step = Annotated[int | None, Query(ge=0, le=MAX_STEP + 1)]
RunId = int
MAX_ID = 2**62
MAX_PATH = 4_096  # letters of a module's path
ALL_RANKS = "all"
MAX_DAMAGED = 100  # stored tiles that a reply names; it counts all


def answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON: bytes become base64, and NaN and Inf null."""
    return Response(
        msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"}
    )


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
    incarnation = incarnation_of(request)
    run = reader.run(run_id) if 0 <= run_id < MAX_ID else None
    if run is None:
        raise ApiError(404, "unknown_run", f"there is no run {run_id}")
    if incarnation is not None:
        run.as_of(incarnation)
    return run


def incarnation_of(request: Request) -> int | None:
    """Before whose later restarts the run is to be shown; None: as it is now. Raises `ApiError` 422."""
    given = request.query_params.get("incarnation")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise ApiError(422, "bad_parameter", "incarnation must be a whole number from 1")
    return int(given)


def damaged_in(run: RunReader) -> dict[str, Any]:
    """What could not be read for this reply, for `meta` or the reply itself; nothing when all could."""
    tiles = sorted(run.damage, key=lambda each: (each.level, each.start, each.rank, each.part))
    shown = [
        {"rank": each.rank, "part": each.part, "level": each.level}
        | {"first_step": each.start, "last_step": each.stop - 1}
        for each in tiles[:MAX_DAMAGED]
    ]
    return {"damaged": shown, "damaged_tiles": len(tiles)} if tiles else {}


def steps_of(run: RunReader, start: int | None, stop: int | None) -> tuple[int, int]:
    """The steps asked for, cut to those there are."""
    first, last = run.first_step or 0, -1 if run.last_step is None else run.last_step
    low = first if start is None else max(start, first)
    high = last + 1 if stop is None else min(stop, last + 1)
    return low, max(high, low)


def rank_of(run: RunReader, rank: int | None) -> int:
    """The rank, by default the first. Raises `ApiError` 404."""
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
    return [rank_of(run, int(rank))]


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


def error_answer(error: Exception) -> ApiError:
    """`error` as a client gets it. One of ours that nobody foresaw is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])  # after "query", "path" or "body"
        return ApiError(422, "bad_parameter", f"{where}: {first['msg']}")
    if isinstance(error, TileError):
        return ApiError(500, "damaged", f"some stored data of this run cannot be read: {error}")
    if isinstance(error, HTTPException):
        code = "not_allowed" if error.status_code == 405 else "not_found"
        return ApiError(error.status_code, code, str(error.detail))
    if not isinstance(error, BrokenOff):
        logger.error("a request failed", exc_info=error)
    return ApiError(500, "internal", "the server failed at this request; its log says more")
