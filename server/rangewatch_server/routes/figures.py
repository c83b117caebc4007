"""The routes of figures: one as JSON, or those of a whole page as lines, each as soon as it is built. docs/api.md is
the contract.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rangewatch_server import figures
from rangewatch_server.core import deadline
from rangewatch_server.core.deadline import TimeLimitReached, limited
from rangewatch_server.core.errors import ApiError, answers
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.figures.base import MAX_COLUMNS, MAX_ROWS, Figure, Params
from rangewatch_server.figures.heatmaps.rank_rows import NODE
from rangewatch_server.machines.mesh import mesh_of
from rangewatch_server.query.reader import Queries, RunReader
from rangewatch_server.routes.dependencies import (
    ALL_RANKS,
    MAX_PATH,
    RunId,
    answer,
    check_tensor,
    damaged_in,
    error_answer,
    kinds_of,
    ranks_of,
    reading_run,
    run_of,
    steps_of,
)
from rangewatch_server.store.batch_checks import MAX_STEP

router = APIRouter()

MAX_CLOSED = 200  # modules that a figure shows as one row
MAX_TREE = 500  # modules of the tree beside a figure
MAX_PLACES = 50  # rows of a heatmap with the exact step of their worst
MOST_TOGETHER = 24  # figures of one answer: a page has 14 lanes at most
MOST_CELLS = 1 << 23  # columns times rows of all of them: what waits for a slow client is kept
MOST_LETTERS = 4_096
TOGETHER_LIMIT_S = 30.0  # all figures of one answer; each has a request's
LINES = "application/x-ndjson"
UNKEPT = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would keep lines until it has 8 KiB of them
Place = Annotated[int | None, Field(ge=0, le=MAX_STEP + 1)]


class Asked(BaseModel):
    """The parameters of a figure."""

    model_config = ConfigDict(frozen=True)

    start: Place = None
    stop: Place = None
    rank: str = ALL_RANKS
    kind: list[str] = []
    q: str = ""
    tensor: int | None = None
    against: Annotated[str, Field(max_length=40)] = ""
    columns: Annotated[int, Field(ge=1, le=MAX_COLUMNS)] = 1_000
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 400
    statistic: Annotated[str, Field(max_length=60)] = ""
    sort: Literal["call", "name", "worst"] = "call"
    closed: Annotated[list[Annotated[str, Field(max_length=MAX_PATH)]], Field(max_length=MAX_CLOSED)] = []
    tree: Annotated[int, Field(ge=0, le=MAX_TREE)] = 0
    places: Annotated[int, Field(ge=0, le=MAX_PLACES)] = 0
    fold: Annotated[str, Field(max_length=60)] = ""


REPEATED = ("kind", "closed")


@router.get("/api/v1/figures")
def list_figures() -> Response:
    """The figures there are."""
    listed = ({"name": each.name, "title": each.title, "help": each.help, "unit": each.unit} for each in figures.ALL)
    return answer({"figures": list(listed)})


@router.get("/api/v1/runs/{run_id}/figures/{name}")
def show_figure(run_id: RunId, name: str, request: Request, asked: Annotated[Asked, Query()]) -> Response:
    """A figure of some steps of the run."""
    figure = _named(name)
    with reading_run(request, run_id) as run:
        return answer(_built(run, figure, asked))


@router.get("/api/v1/runs/{run_id}/figures", responses=answers(200, "A line each.", LINES), response_class=Response)
async def show_figures(
    run_id: RunId,
    request: Request,
    figure: Annotated[list[Annotated[str, Field(max_length=MOST_LETTERS)]], Query(max_length=MOST_TOGETHER)],
) -> Response:
    """Several figures of one view of the run, as lines of JSON in the order asked for, each when it is built."""
    lines = await _Lines(request, run_id, figure).begin()
    return StreamingResponse(lines, media_type=LINES, headers=UNKEPT)


class _Lines:
    """Of one answer: built in one thread, and sent by the event loop as they come."""

    def __init__(self, request: Request, run_id: int, asked: list[str]) -> None:
        self._request = request
        self._run_id = run_id
        self._asked = list(enumerate(asked))
        self._cells_left = MOST_CELLS
        self._ends_s = time.monotonic() + TOGETHER_LIMIT_S
        self._is_begun = False
        self._built: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._has_gone = threading.Event()
        """The client: nothing more is built."""

    async def begin(self) -> AsyncIterator[bytes]:
        """The lines to come. Raises what `reading_run` does, such as `ApiError` where there is no such run."""
        work = asyncio.ensure_future(run_in_threadpool(self._build))
        work.add_done_callback(lambda _: self._built.put_nowait(None))
        first = await self._built.get()
        if first is None:
            await work
        return self._sent(first, work)

    async def _sent(self, line: bytes | None, work: asyncio.Future[None]) -> AsyncIterator[bytes]:
        try:
            while line is not None:
                yield line
                line = await self._built.get()
            await work
        finally:
            self._has_gone.set()

    def _build(self) -> None:
        while self._has_more:
            try:
                self._build_some()
            except Exception as error:
                if not self._is_begun:
                    raise
                while self._has_more:
                    self._refuse(self._asked.pop(0)[0], error)

    def _build_some(self) -> None:
        """In one transaction, which PostgreSQL ends with the first statement that fails."""
        queries: Queries = self._request.app.state.queries
        with queries.read() as reader:
            with limited(reader.connection):
                run = run_of(self._request, reader, self._run_id)
            while self._has_more and self._emit_next(run):
                continue

    @property
    def _has_more(self) -> bool:
        return bool(self._asked) and not self._has_gone.is_set()

    def _emit_next(self, run: RunReader) -> bool:
        """Whether it could be built."""
        number, text = self._asked.pop(0)
        try:
            with limited(run.connection, self._limit_s()):
                encoded = msgspec.json.encode(self._of(run, text))
        except Exception as error:  # noqa: BLE001 - told in its line, and one that nobody foresaw is logged
            self._refuse(number, error)
            return False
        self._emit(b'{"number":%d,"answer":%b}\n' % (number, encoded))
        return True

    def _limit_s(self) -> float:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeLimitReached(TOGETHER_LIMIT_S)
        return min(left_s, deadline.READ_LIMIT_S)

    def _refuse(self, number: int, error: Exception) -> None:
        refused = error_answer(error)
        metrics: Metrics = self._request.app.state.metrics
        metrics.figure_refused(refused.status)
        self._emit(b'{"number":%d,"status":%d,"refused":%b}\n' % (number, refused.status, refused.body()))

    def _emit(self, line: bytes) -> None:
        self._is_begun = True
        self._loop.call_soon_threadsafe(self._built.put_nowait, line)

    def _of(self, run: RunReader, text: str) -> dict[str, Any]:
        name, _, query = text.partition("?")
        asked, figure = parsed(query), _named(name)
        self._cells_left -= asked.columns * asked.rows
        if self._cells_left < 0:
            raise ApiError(422, "too_much", f"all figures of one answer have {MOST_CELLS:,} cells at most")
        run.damage.clear()  # what figures before this one could not read
        return _built(run, figure, asked)


def parsed(query: str) -> Asked:
    """A figure's parameters, as in an address. Raises `ApiError` 422."""
    try:
        given = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_CLOSED + 100)
        if "incarnation" in given:
            raise ValueError("incarnation is asked for once, beside the figures")
        return Asked.model_validate({name: each if name in REPEATED else each[-1] for name, each in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ApiError(422, "bad_parameter", f"{where}: {first['msg']}") from None
    except ValueError as error:
        raise ApiError(422, "bad_parameter", f"figure: {error}") from None


def _named(name: str) -> Figure:
    figure = figures.BY_NAME.get(name)
    if figure is None:
        raise ApiError(404, "unknown_figure", f"there is no figure {name[:40]!r}; GET /api/v1/figures lists them")
    return figure


def check_fold(run: RunReader, fold: str) -> None:
    """Raises `ApiError` for what is no axis of the run's mesh."""
    known = [NODE, *(name for name, _ in mesh_of(run).axes)]
    if fold not in known:
        raise ApiError(422, "bad_parameter", f"fold must be one of {', '.join(known)}")


def _built(run: RunReader, figure: Figure, asked: Asked) -> dict[str, Any]:
    low, high = steps_of(run, asked.start, asked.stop)
    if figure.needs_tensor:
        check_tensor(run, asked.tensor)
    if asked.fold:
        check_fold(run, asked.fold)
    params = Params(
        start=low, stop=high, ranks=tuple(ranks_of(run, asked.rank)), all_ranks=asked.rank == ALL_RANKS,
        kinds=kinds_of(asked.kind), q=asked.q, tensor=asked.tensor, columns=asked.columns, rows=asked.rows,
        against=asked.against, statistic=asked.statistic, sort=asked.sort, closed=tuple(asked.closed), tree=asked.tree,
        places=asked.places,
        fold=asked.fold,
    )  # fmt: skip
    data, meta = figure.build(run, params)
    meta = {"unit": figure.unit, "scale": figure.scale} | meta | damaged_in(run)
    return {"figure": {"data": data}, "meta": meta}
