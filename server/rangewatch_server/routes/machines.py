"""Routes of cards, hosts, environments and what ranks write to stderr: docs/api.md."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rangewatch_server.core.errors import ApiError
from rangewatch_server.machines import environment, gpus, stderr
from rangewatch_server.routes.dependencies import MAX_ID, RunId, answer, rank_of, reading_run

router = APIRouter()

Time = Annotated[int | None, Query(ge=0, le=MAX_ID)]
Width = Annotated[int, Query(ge=1, le=2_000)]


@router.get("/api/v1/runs/{run_id}/gpus")
def list_gpus(run_id: RunId, request: Request) -> Response:
    """All cards and hosts as they are now."""
    with reading_run(request, run_id) as run:
        return answer(gpus.summary(run) | {"now_ns": time.time_ns()})


@router.get("/api/v1/runs/{run_id}/gpus/{rank}")
def show_gpu(
    run_id: RunId, rank: int, request: Request,
    key: Annotated[str, Query(max_length=4_096)] = "", start_ns: Time = None, stop_ns: Time = None,
    columns: Width = 600,
) -> Response:  # fmt: skip
    """One card over time; without `key` the rank's host."""
    with reading_run(request, run_id) as run:
        if rank not in run.ranks:
            raise ApiError(404, "unknown_rank", f"run {run_id} has no rank {rank}")
        return answer(gpus.lanes(run, rank, key, start_ns, stop_ns, columns))


@router.get("/api/v1/runs/{run_id}/environment")
def show_environment(run_id: RunId, request: Request) -> Response:
    """Facts and findings of every rank, and who is odd."""
    with reading_run(request, run_id) as run:
        return answer(environment.environment(run))


@router.get("/api/v1/runs/{run_id}/stderr")
def show_stderr(run_id: RunId, request: Request, rank: int | None = None) -> Response:
    """The last lines of a rank's stderr; without `rank` of the first that died or failed."""
    with reading_run(request, run_id) as run:
        if not run.ranks:
            raise ApiError(404, "unknown_rank", f"run {run_id} has no rank yet")
        return answer(stderr.tail(run, stderr.default_rank(run) if rank is None else rank_of(run, rank)))
