"""Routes of all ranks at once: docs/api.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rangewatch_server.core.errors import ApiError
from rangewatch_server.machines import mesh
from rangewatch_server.routes.dependencies import RunId, Step, answer, reading_run, steps_of
from rangewatch_server.views import rank_map, replicas

router = APIRouter()


@router.get("/api/v1/runs/{run_id}/mesh")
def show_mesh(run_id: RunId, request: Request) -> Response:
    """Where each rank stands, how parameters lie, and what the stages of a pipeline hold."""
    with reading_run(request, run_id) as run:
        return answer(mesh.mesh_answer(run))


@router.get("/api/v1/runs/{run_id}/replicas")
def show_replicas(run_id: RunId, request: Request) -> Response:
    """When each parameter was last compared between the ranks that must hold the same."""
    with reading_run(request, run_id) as run:
        return answer(replicas.replicas(run))


@router.get("/api/v1/runs/{run_id}/rank_map")
def show_rank_map(
    run_id: RunId, request: Request, start: Step = None, stop: Step = None,
    measure: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:  # fmt: skip
    """One value a rank, by node, and who stands out."""
    if measure is not None and measure not in rank_map.BY_NAME:
        raise ApiError(422, "bad_parameter", f"measure must be one of {', '.join(rank_map.BY_NAME)}")
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        return answer(rank_map.rank_map(run, measure, low, high))
