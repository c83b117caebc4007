"""The one write route: size, decode, check, queue; answered when the commit that holds the message is done."""

from __future__ import annotations

import asyncio
import time
from functools import cache

import msgspec
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response

from rangewatch.records import Batch, Opening
from rangewatch.wire import MAX_COMPRESSED_BYTES, WireError, decode
from rangewatch_server.body import read_body
from rangewatch_server.errors import STATUS_OF_CODE, ApiError
from rangewatch_server.measures import Measures
from rangewatch_server.store.checks import check_header, check_opening
from rangewatch_server.store.transaction import Refused
from rangewatch_server.store.writer import Busy, Unavailable, Writer

router = APIRouter()

PATH = "/api/v1/ingest"
RETRY_AFTER_S = 1
DECODERS = 2  # threads: decoding is mostly zstd and numpy, which let each other run


class Accepted(msgspec.Struct, frozen=True):
    """The answer to an agent. `commands` are JSON objects that ask it for more: docs/wire.md."""

    contiguous: int
    duplicate: bool
    commands: tuple[msgspec.Raw, ...]
    send_every_s: float


@router.post(PATH, status_code=202)
async def ingest(request: Request) -> Response:
    """Take one wire message (docs/wire.md)."""
    body = await read_body(request, MAX_COMPRESSED_BYTES)
    began_s = time.monotonic()
    writer: Writer = request.app.state.writer
    try:
        message = await to_thread.run_sync(_checked, body, limiter=_limiter())
        answer = await asyncio.wrap_future(writer.submit(message, body))
    except (WireError, Refused) as error:
        status = STATUS_OF_CODE[error.code]
        raise ApiError(status, error.code, str(error), RETRY_AFTER_S if status == 429 else None) from None
    except Busy as error:
        raise ApiError(429, "busy", str(error), RETRY_AFTER_S) from None
    except Unavailable as error:
        raise ApiError(503, "unavailable", str(error), RETRY_AFTER_S) from None
    measures: Measures = request.app.state.measures
    measures.acknowledged(len(body), time.monotonic() - began_s, duplicate=answer.duplicate)
    accepted = Accepted(answer.contiguous, answer.duplicate, answer.commands, answer.send_every_s)
    return Response(msgspec.json.encode(accepted), 202, media_type="application/json")


@cache
def _limiter() -> CapacityLimiter:
    """Threads of ingest's own: page requests have others, so that a crowd of them does not hold up the agents."""
    return CapacityLimiter(DECODERS)


def _checked(body: bytes) -> Opening | Batch:
    message = decode(body)
    if isinstance(message, Opening):
        check_opening(message)
    else:
        check_header(message)
    return message
