"""What is answered for an exception of any kind, on every route."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rangewatch_server.core.errors import ApiError
from rangewatch_server.store.tiles import TileError

logger = logging.getLogger("rangewatch.server")


def of(error: Exception) -> ApiError:
    """`error` as a client is told of it. One of ours that nobody foresaw is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])  # after "query", "path" or "body"
        return ApiError(422, "bad_parameter", f"{where}: {first['msg']}")
    if isinstance(error, TileError):
        return ApiError(500, "damaged", f"some stored data of this run cannot be read: {error}")
    if isinstance(error, HTTPException):
        code = "not_allowed" if error.status_code == 405 else "not_found"
        return ApiError(error.status_code, code, str(error.detail))
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "internal", "the server failed at this request; its log says more")
