"""The one write route: size, decode, check, queue; answered when the commit that holds the message is done."""

from __future__ import annotations

import asyncio
import time
from functools import cache

import msgspec
import zstandard
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response

from rangewatch.wire import (
    MAX_COMPRESSED_BYTES,
    MAX_DECOMPRESSED_BYTES,
    PROCESS_ENDED,
    PROCESS_HEADER,
    WireError,
    decode,
)
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.access.body import Room, read_body
from rangewatch_server.alerts.evaluator import Evaluator, RunHealth
from rangewatch_server.core.errors import STATUS_OF_CODE, ApiError, request_body
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.ingest.also_live import OtherProcess
from rangewatch_server.ingest.transaction import Answer, Refused
from rangewatch_server.ingest.writer import Busy, Unavailable, Writer
from rangewatch_server.store.batch_checks import check_header, check_opening

router = APIRouter()

PATH = "/api/v1/ingest"
RETRY_AFTER_S = 1
FULL_RETRY_AFTER_S = 60  # of a server that takes no further run: somebody must remove some
# Bodies that arrive, and messages that wait for their commit, packed and unpacked: a fleet of 1,024 ranks has some
# 30 MiB of them under way.
ROOM_BYTES = 512 << 20
# An opening is many small objects once it is decoded: as many times its bytes (measured: 4 for names, 5 at worst).
OPENING_OBJECTS = 5
DECODERS = 2  # threads: decoding is mostly zstd and numpy, which let each other run


class Accepted(msgspec.Struct, frozen=True):
    """The answer to an agent. `commands` are JSON objects that ask it for more: docs/wire.md. `also_live` and
    `health` are left out where there is none.
    """

    contiguous: int
    duplicate: bool
    commands: tuple[msgspec.Raw, ...]
    send_every_s: float
    also_live: OtherProcess | msgspec.UnsetType = msgspec.UNSET
    health: RunHealth | msgspec.UnsetType = msgspec.UNSET


@router.post(
    PATH, status_code=202, openapi_extra=request_body("application/zstd", {"type": "string", "format": "binary"})
)
async def ingest(request: Request) -> Response:
    """Take one wire message (docs/wire.md)."""
    room: Room = request.app.state.room
    writer: Writer = request.app.state.writer
    metrics: Metrics = request.app.state.metrics
    with room.taken() as taken:
        has_ended = request.headers.get(PROCESS_HEADER) == PROCESS_ENDED
        body = await read_body(request, MAX_COMPRESSED_BYTES, taken)
        taken.take(_unpacked_bytes(body))
        began_s = time.monotonic()
        message = await to_thread.run_sync(_checked, body, limiter=_limiter())
        if isinstance(message, WireError):
            raise _refused(message.code, str(message))
        if isinstance(message, StreamHeader):
            taken.take(OPENING_OBJECTS * _unpacked_bytes(body))
        try:
            answer: Answer = await asyncio.wrap_future(writer.submit(message, body, has_ended=has_ended))
        except (WireError, Refused) as error:
            raise _refused(error.code, str(error)) from None
        except Busy as error:
            raise ApiError(429, "busy", str(error), RETRY_AFTER_S) from None
        except Unavailable as error:
            raise ApiError(503, "unavailable", str(error), RETRY_AFTER_S) from None
    metrics.acknowledged(len(body), time.monotonic() - began_s, duplicate=answer.duplicate)
    evaluator: Evaluator = request.app.state.alerts
    health = evaluator.health.get(message.run) if isinstance(message, Batch) else None
    accepted = Accepted(
        answer.contiguous, answer.duplicate, answer.commands, answer.send_every_s, answer.also_live or msgspec.UNSET,
        health or msgspec.UNSET,
    )  # fmt: skip
    return Response(msgspec.json.encode(accepted), 202, media_type="application/json")


def _refused(code: str, text: str) -> ApiError:
    status = STATUS_OF_CODE[code]
    retry_after_s = FULL_RETRY_AFTER_S if code == "too_many_runs" else RETRY_AFTER_S
    return ApiError(status, code, text, retry_after_s if status == 429 else None)


def _unpacked_bytes(body: bytes) -> int:
    """What it says it will have, unpacked: `decode` refuses one that says nothing, too much, or less than it has."""
    try:
        size = int(zstandard.get_frame_parameters(body).content_size)
    except zstandard.ZstdError:
        return 0
    return size if size <= MAX_DECOMPRESSED_BYTES else 0


@cache
def _limiter() -> CapacityLimiter:
    """Threads of ingest's own: page requests have others, so that a crowd of them does not hold up the agents."""
    return CapacityLimiter(DECODERS)


def _checked(body: bytes) -> StreamHeader | Batch | WireError:
    """What is in the body, or what is wrong with it.

    Returned, not raised: an error that comes through a future is a reference cycle, whose frames hold the body and all
    that it was unpacked to until Python collects cycles. Measured: 40 refused bodies of 2 KiB kept 900 MiB.
    """
    try:
        message = decode(body)
        if isinstance(message, StreamHeader):
            check_opening(message)
        else:
            check_header(message)
        return message
    except WireError as error:
        return WireError(error.code, str(error))
