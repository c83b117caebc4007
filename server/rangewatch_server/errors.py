"""Errors of the HTTP API: one line for a person, a short code for a program."""

from __future__ import annotations


class ApiError(Exception):
    """Answered as `{"error": ..., "code": ...}` with `status`."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


# docs/wire.md lists these for agents: 400, 413 and 422 are never sent again, 409 asks for the opening.
STATUS_OF_CODE = {
    "not_zstd": 400,
    "truncated": 400,
    "bad_header": 400,
    "unsupported_version": 400,
    "too_large": 413,
    "shape_mismatch": 422,
    "invalid_value": 422,
    "unstorable": 422,
    "unknown_run": 409,
    "unknown_catalogue": 409,
    "too_far_ahead": 429,
}
