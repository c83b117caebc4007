"""The body of a request, bounded in size and time."""

from __future__ import annotations

import asyncio

from fastapi import Request

from rangewatch_server.errors import ApiError

BODY_S = 30.0  # a body that has not arrived by then is given up: an agent sends 16 MiB at most


async def read_body(request: Request, most_bytes: int) -> bytes:
    """All of it. Raises `ApiError` when it is larger or slower than allowed."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    try:
        return await asyncio.wait_for(_read(request, most_bytes), BODY_S)
    except asyncio.TimeoutError:
        raise ApiError(408, "slow_body", f"body did not arrive within {BODY_S:.0f} s") from None


async def _read(request: Request, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            raise _too_large(most_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"body is larger than {most_bytes} bytes")
