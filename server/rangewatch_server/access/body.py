"""The body of a request, bounded in size and time."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from anyio import fail_after
from fastapi import Request
from starlette.requests import ClientDisconnect

from rangewatch_server.core.errors import ApiError

Shape = TypeVar("Shape")

BODY_S = 30.0  # a body that has not arrived by then is given up: an agent sends 16 MiB at most
RETRY_AFTER_S = 1


class Room:
    """Memory for bodies that arrive, wait and are worked on, of all clients together. Event loop only.

    10,000 connections may each hold back the last byte of 16 MiB: 160 GB, which no bound on one body prevents.
    """

    def __init__(self, most_bytes: int) -> None:
        self.left_bytes = most_bytes

    def taken(self) -> Taken:
        """Room for one request; none yet."""
        return Taken(self)


class Taken:
    """What one request has; given back at the end of a `with`."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.bytes = 0

    def take(self, size: int) -> None:
        """Have `size` bytes more. Raises `ApiError` 429 when there is no room."""
        if size > self.room.left_bytes:
            raise ApiError(429, "busy", "too many bodies are under way", RETRY_AFTER_S)
        self.room.left_bytes -= size
        self.bytes += size

    def __enter__(self) -> Taken:
        return self

    def __exit__(self, *_: object) -> None:
        self.room.left_bytes += self.bytes
        self.bytes = 0


async def read_body(request: Request, most_bytes: int, taken: Taken | None = None) -> bytes:
    """All of it. Raises `ApiError` when it is larger or slower than allowed, or there is no room for it."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        with fail_after(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise _too_large(most_bytes)
                if taken is not None:
                    taken.take(len(part))
                parts.append(part)
        return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, "slow_body", f"body did not arrive within {BODY_S:.0f} s") from None
    except ClientDisconnect:
        raise ApiError(400, "disconnected", "the client went away before its body had arrived") from None


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    """What its JSON says. Raises `ApiError` 422 where that is no `shape`."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(422, "bad_parameter", f"the body cannot be read: {str(error)[:200]}") from None


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"body is larger than {most_bytes} bytes")
