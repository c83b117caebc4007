"""Routes of collectives and hangs: docs/api.md."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from rangewatch_server.collectives import hang_state, summary
from rangewatch_server.routes.dependencies import RunId, Step, answer, reading_run, steps_of
from rangewatch_server.store.batch_checks import MAX_STEP

router = APIRouter()


@router.get("/api/v1/runs/{run_id}/collectives")
def show_collectives(run_id: RunId, request: Request, start: Step = None, stop: Step = None) -> Response:
    """Table, waits by rank and step, and who keeps the others waiting."""
    with reading_run(request, run_id) as run:
        # Records of the open step come before its rows do: without an end all there is.
        low, high = steps_of(run, start, stop)
        return answer(summary.collectives(run, low, MAX_STEP if stop is None else high))


@router.get("/api/v1/runs/{run_id}/collectives/step")
def show_collectives_of_a_step(run_id: RunId, request: Request, step: Step = None) -> Response:
    """Every rank's collectives of one step."""
    with reading_run(request, run_id) as run:
        return answer(summary.one_step(run, step))


@router.get("/api/v1/runs/{run_id}/hang")
def show_hang(run_id: RunId, request: Request) -> Response:
    """Who the run waits for, if it hangs now."""
    with reading_run(request, run_id) as run:
        return answer(hang_state.answer(run))
