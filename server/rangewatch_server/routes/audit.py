"""The audit as the API shows it; `rangewatch audit` reads the same from the database."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rangewatch_server.access.principals import Principals
from rangewatch_server.core.errors import ApiError
from rangewatch_server.routes.runs import MAX_ID, answer
from rangewatch_server.store.engine import DatabaseError

router = APIRouter()

MOST = 500  # records of one answer


@router.get("/api/v1/audit")
def list_records(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
) -> Response:
    """What was done with the role admin, newest first."""
    principals: Principals = request.app.state.principals
    try:
        return answer({"records": principals.store.records(limit, before)})
    except DatabaseError as error:
        raise ApiError(503, "unavailable", str(error), 1) from None
