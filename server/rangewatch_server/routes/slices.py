"""The route of slices: JSON of any two axes, or a file streamed a piece at a time. docs/api.md is the contract."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from rangewatch_server.core.deadline import limited
from rangewatch_server.core.errors import ApiError, answers
from rangewatch_server.figures.base import Grid, label
from rangewatch_server.numerics.headroom import STATE_NAMES
from rangewatch_server.query.reader import Queries, RunReader
from rangewatch_server.query.slices import Cache
from rangewatch_server.routes.dependencies import RunId, Step, answer, incarnation_of, reading_run
from rangewatch_server.routes.downloads import Download, cut_up
from rangewatch_server.store.names import Tensors
from rangewatch_server.views.exports import rectangles
from rangewatch_server.views.exports.rectangles import Asked, Rectangle, resolve

router = APIRouter()
Array = NDArray[Any]

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}
MAX_COLUMNS = 1_000_000  # JSON's limit of values is far below; a file may have them
EXPORT_CACHE_BYTES = 64 << 20  # of all exports: a whole run read once would drive out what the pages look at


@router.get("/api/v1/runs/{run_id}/slice", responses=answers(200, "In the format asked for.", *MEDIA_TYPES.values()))
def show_slice(
    run_id: RunId,
    request: Request,
    axes: str = "step,tensor",
    statistic: Annotated[list[str] | None, Query()] = None,
    rank: str = "all",
    tensor: str = "all",
    kind: Annotated[list[str] | None, Query()] = None,
    q: str = "",
    step: Step = None,
    start: Step = None,
    stop: Step = None,
    columns: Annotated[int | None, Query(ge=1, le=MAX_COLUMNS)] = None,
    format: Literal["json", "csv", "parquet", "arrow"] = "json",
) -> Response:
    """Any two of step, tensor and rank, the third fixed or merged."""
    asked = Asked(
        axes=axes, statistics=statistic or ["amax"], rank=rank, tensor=tensor, kinds=kind or [], q=q, step=step,
        start=start, stop=stop, columns=columns, is_export=format != "json",
    )  # fmt: skip
    with reading_run(request, run_id) as run:
        rectangle = resolve(run, asked)
        if format == "json":
            return answer(_matrices(run, rectangle))
        details, tensors = _details(run, rectangle), run.names().tensors
    shown = Shown(_own(request), run_id, incarnation_of(request))
    before = "" if shown.incarnation is None else f"-incarnation-{shown.incarnation}"
    name = f"rangewatch-run-{run_id}{before}-steps-{rectangle.cut.start}-{rectangle.cut.stop}.{format}"
    return Download(_file(shown, rectangle, tensors, details, format), name, MEDIA_TYPES[format])


def _matrices(run: RunReader, rectangle: Rectangle) -> dict[str, Any]:
    parts = [rectangles.read(run, rectangle, group, cut) for group, cut in rectangles.pieces(rectangle)]
    values = {
        name: _matrix([part.columns[name] for part in parts], rectangle).tolist() for name in rectangle.statistics
    }
    states = _matrix([part.state for part in parts], rectangle).tolist()
    return _details(run, rectangle) | _axes(rectangle, run.names().tensors) | {
        "values": values, "states": states, "state_names": STATE_NAMES,
    }  # fmt: skip


def _matrix(parts: list[Array], rectangle: Rectangle) -> Array:
    """The parts, which are (tensors, steps) and come rank by rank, as the matrix of `rectangle.shape`."""
    if not parts:
        return np.zeros(rectangle.shape)
    if "rank" not in rectangle.axes:
        return np.concatenate(parts, axis=1)
    return np.concatenate([part.ravel() for part in parts]).reshape(rectangle.shape)


def _axes(rectangle: Rectangle, tensors: Tensors) -> dict[str, Any]:
    axes: dict[str, dict[str, Any]] = {}
    if "rank" in rectangle.axes:
        axes["rows"] = {"axis": "rank", "ranks": [group[0] for group in rectangle.groups]}
    if "step" in rectangle.axes:
        axes["columns"] = {"axis": "step", "steps": rectangle.column_starts(rectangle.cut)[0].tolist()}
    if "tensor" in rectangle.axes:
        labels = [label(tensors.entries[each]) for each in rectangle.order]
        named = {"axis": "tensor", "tensors": rectangle.order.tolist(), "labels": labels}
        axes["columns" if "rows" in axes else "rows"] = named
    return axes


def _details(run: RunReader, rectangle: Rectangle) -> dict[str, Any]:
    """What was read, and what of it is merged."""
    cut = rectangle.cut
    per = cut.per if "step" in rectangle.axes else cut.stop - cut.start
    merged: dict[str, list[int]] = {}
    if "rank" not in rectangle.axes:
        merged["ranks"] = [rank for group in rectangle.groups for rank in group]
    if "tensor" not in rectangle.axes:
        merged["tensors"] = rectangle.order.tolist()
    return {
        "run": run.name, "start": cut.start, "stop": cut.stop, "steps_per_column": per, "level": cut.level,
        "ship_every": run.ship_every, "thinned": _thinned(cut), "merged": merged,
    }  # fmt: skip


def _thinned(cut: Grid) -> dict[str, int] | None:
    """Before `step` only columns of `steps` steps are kept, but around events."""
    return {"step": cut.thin_step, "steps": cut.thin_per} if cut.thin_step else None


def _own(request: Request) -> Queries:
    """The app's queries with a cache that all its exports share.

    One for each export would stay until Python collects it, since a `RunReader` is part of a reference cycle: measured,
    67 MiB an export.
    """
    state = request.app.state
    if not hasattr(state, "export_queries"):
        queries = copy.copy(state.queries)
        queries.cache = Cache(EXPORT_CACHE_BYTES)
        state.export_queries = queries
    own: Queries = state.export_queries
    return own


class Shown(NamedTuple):
    """The run that an export is of, `incarnation` None: as it is now."""

    queries: Queries
    run_id: int
    incarnation: int | None

    @contextmanager
    def reading(self) -> Iterator[RunReader]:
        """A transaction for one piece. Raises `TimeLimitReached`."""
        with self.queries.read() as reader, limited(reader.connection):
            run = reader.run(self.run_id)
            if run is None:
                raise ApiError(404, "unknown_run", f"run {self.run_id} was deleted during an export")
            if self.incarnation is not None:
                run.as_of(self.incarnation)
            yield run


def _file(
    shown: Shown, rectangle: Rectangle, tensors: Tensors, details: dict[str, Any], format_name: str
) -> Iterator[bytes]:
    """The file's bytes. Each piece has a transaction of its own, over before any of it is sent.

    One transaction for all would show one instant; but SQLite's log cannot be shortened past what a reader sees, nor
    PostgreSQL's rows be cleaned, and a client that reads slowly would keep both growing. Steps that have passed change
    only when rows come late.
    """
    from rangewatch_server.views.exports import files

    about = {f"rangewatch.{name}": str(value) for name, value in details.items() if name != "merged"}
    table = files.Table(rectangle, tensors.entries, about)
    encoder = files.encoder(format_name, table.schema)

    def is_observed(group: int, cut: Grid) -> bool:
        with shown.reading() as run:
            return rectangles.is_observed(run, rectangle.groups[group], cut.start, cut.stop)

    for group, cut in rectangles.pieces(rectangle, is_observed):
        with shown.reading() as run:
            part = rectangles.read(run, rectangle, group, cut)
        yield from cut_up(encoder.add(table.of(part)))
    yield from cut_up(encoder.finish())
