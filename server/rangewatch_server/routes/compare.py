"""Routes of runs beside each other: docs/api.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.base import MAX_COLUMNS
from rangewatch_server.machines.mesh import world_size
from rangewatch_server.query.reader import Reader, RunReader
from rangewatch_server.routes.dependencies import MAX_ID, answer, reading
from rangewatch_server.store import alerts, run_metadata
from rangewatch_server.views import overview
from rangewatch_server.views.side_by_side import MOST_RUNS, parting, series, settings
from rangewatch_server.views.side_by_side.first_difference import Limits, find

router = APIRouter()

Numbers = Annotated[list[int], Query(max_length=MOST_RUNS + 1)]
Repeats = Annotated[list[int] | None, Query(max_length=MOST_RUNS - 2)]
Names = Annotated[list[Annotated[str, Query(max_length=400)]] | None, Query(max_length=series.MOST_NAMES)]


@router.get("/api/v1/compare")
def compare_runs(
    request: Request, run: Numbers, tolerance: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.001
) -> Response:
    """What several runs were set otherwise, and where each parts from the first."""
    with reading(request) as reader:
        runs = _runs(reader, run)
        reference, *others = runs
        parted = [parting.losses(reference, other, tolerance) for other in others]
        first = parting.tensors(reference, others[0], parted[0]) if len(others) == 1 else None
        return answer(
            {"runs": [_line(each) for each in runs], "tolerance": tolerance, "parting": parted, "tensors": first}
            | settings.differences(runs)
        )


@router.get("/api/v1/compare/first")
def first_difference(
    request: Request, run: Numbers, noise: Repeats = None,
    tolerance: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.0,
    margin: Annotated[float, Query(ge=1, le=1_000, allow_inf_nan=False)] = 3.0,
) -> Response:  # fmt: skip
    """The first step and tensor at which two runs part, beyond what runs that repeat the first one differ by."""
    with reading(request) as reader:
        runs = _runs(reader, run)
        if len(runs) > 2:
            raise ApiError(422, "bad_parameter", f"run: two runs are compared, not {len(runs)}; others can be noise")
        repeats = _runs(reader, [*run[:1], *noise])[1:] if noise else []
        found = find(runs[0], runs[1], repeats, Limits(tolerance, margin))
        lines = {"runs": [_line(each) for each in runs], "noise": [_line(each) for each in repeats]}
        return answer(lines | found | settings.differences(runs))


@router.get("/api/v1/compare/series")
def compare_series(
    request: Request, run: Numbers, name: Names = None, columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = 600
) -> Response:
    """Series of several runs, each over its own steps."""
    with reading(request) as reader:
        runs = _runs(reader, run)
        return answer({"runs": [series.lines(each, list(dict.fromkeys(name or [])), columns) for each in runs]})


def _runs(reader: Reader, numbers: list[int]) -> list[RunReader]:
    wanted = list(dict.fromkeys(numbers))
    if not 2 <= len(wanted) <= MOST_RUNS:
        raise ApiError(422, "bad_parameter", f"run: 2 to {MOST_RUNS} runs are compared, not {len(wanted)}")
    runs = [reader.run(each) if 0 <= each < MAX_ID else None for each in wanted]
    missing = next((number for number, each in zip(wanted, runs, strict=True) if each is None), None)
    if missing is not None:
        raise ApiError(404, "unknown_run", f"there is no run {missing}")
    return [each for each in runs if each is not None]


def _line(run: RunReader) -> dict[str, Any]:
    state = overview.shown_state(overview.state(run), alerts.hung(run.connection, [run.id]))
    return {
        "id": run.id, "name": run.name, "state": state, "world_size": world_size(run),
        "first_step": run.first_step, "last_step": run.last_step, "series": sorted(run.names().series),
    } | run_metadata.shown(run.about)  # fmt: skip
