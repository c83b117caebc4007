"""The route of what-if readings: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rangewatch_server.routes.dependencies import (
    ALL_RANKS,
    RunId,
    Step,
    answer,
    kinds_of,
    ranks_of,
    reading_run,
    steps_of,
)
from rangewatch_server.views.whatif import MOST_TENSORS, Limits, whatif

router = APIRouter()

# Normally distributed numbers stay within them even in MXFP4: there 8 % become zero, 1 % saturate, 18.6 dB are left.
FLUSHED_PERCENT, SATURATED_PERCENT, SQNR_DB = 15.0, 2.0, 15.0


@router.get("/api/v1/runs/{run_id}/whatif")
def show_whatif(
    run_id: RunId, request: Request, start: Step = None, stop: Step = None, rank: str = ALL_RANKS,
    kind: Annotated[list[str] | None, Query()] = None, q: str = "",
    limit: Annotated[int, Query(ge=1, le=MOST_TENSORS)] = 1_000,
    flushed_percent: Annotated[float, Query(ge=0, le=100)] = FLUSHED_PERCENT,
    saturated_percent: Annotated[float, Query(ge=0, le=100)] = SATURATED_PERCENT,
    sqnr_db: Annotated[float, Query(ge=0, le=200)] = SQNR_DB,
) -> Response:  # fmt: skip
    """What would be left of each tensor in smaller formats, of all readings of these steps and ranks together."""
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        limits = Limits(flushed_percent / 100, saturated_percent / 100, sqnr_db)
        return answer(whatif(run, ranks_of(run, rank), low, high, kinds_of(kind), q, limit, limits))
