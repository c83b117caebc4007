"""Errors of the HTTP API: one line for a person, a short code for a program; and the database's."""

from __future__ import annotations

from typing import Any

import msgspec


class DatabaseError(RuntimeError):
    """The database cannot be used; the text says why and what to do."""


class BrokenOff(Exception):
    """An answer that has begun cannot be ended; the connection is closed, and the log has said why."""


class ApiError(Exception):
    """Answered as `{"error": ..., "code": ...}` with `status`."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """What is answered, as JSON."""
        return msgspec.json.encode({"error": str(self), "code": self.code})


# docs/wire.md lists these for agents: 400, 413 and 422 are never sent again, 409 asks for the opening.
STATUS_OF_CODE = {
    "not_zstd": 400,
    "truncated": 400,
    "bad_header": 400,
    "unsupported_version": 400,
    "wrong_statistic": 400,
    "too_large": 413,
    "shape_mismatch": 422,
    "invalid_value": 422,
    "unstorable": 422,
    "unknown_run": 409,
    "unknown_catalogue": 409,
    "too_far_ahead": 429,
    "too_many_runs": 429,
}


_BODY = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
    "required": ["error", "code"],
    "additionalProperties": False,
}
_STATUSES = {
    400: "The body did not arrive, or cannot be read.",
    401: "A token is needed.",
    403: "The token may not do this, or a page of another site asked.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It cannot be done to what is there as it is.",
    413: "Too large, as a body or as an answer.",
    421: "The server is not known under that name.",
    422: "A parameter, or something in the body, that cannot be.",
    429: "Too often, or too much at once; see Retry-After.",
    503: "Not now; see Retry-After where it is given.",
    507: "The disk has no room for it.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _BODY}}}
    for status, text in _STATUSES.items()
}
"""How any route may answer instead, for the OpenAPI document."""


def answers(status: int, text: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """A good answer that is no JSON object, for a route's `responses`: nothing when no media type is given."""
    return {status: {"description": text, "content": {each: {} for each in media_types}}}


def request_body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    """What a route takes as its body, for its `openapi_extra`."""
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
