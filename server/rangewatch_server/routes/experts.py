"""The route of routers of experts: docs/api.md."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rangewatch_server.routes.dependencies import ALL_RANKS, RunId, Step, answer, ranks_of, reading_run, steps_of
from rangewatch_server.views.experts import routers_of_run

router = APIRouter()


@router.get("/api/v1/runs/{run_id}/experts")
def show_experts(
    run_id: RunId, request: Request, start: Step = None, stop: Step = None, rank: str = ALL_RANKS
) -> Response:
    """How each router of a mixture of experts has spread tokens, over these steps and ranks together."""
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        return answer(routers_of_run(run, ranks_of(run, rank), low, high))
