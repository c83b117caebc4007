"""The route of scales of low precision: docs/api.md."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rangewatch_server.routes.dependencies import ALL_RANKS, RunId, Step, answer, ranks_of, reading_run, steps_of
from rangewatch_server.views.scales import scales_of_run

router = APIRouter()


@router.get("/api/v1/runs/{run_id}/scales")
def show_scales(
    run_id: RunId, request: Request, start: Step = None, stop: Step = None, rank: str = ALL_RANKS, q: str = ""
) -> Response:
    """How the scales of each operand in low precision have fitted it, over these steps and ranks together."""
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        return answer(scales_of_run(run, ranks_of(run, rank), low, high, q))
