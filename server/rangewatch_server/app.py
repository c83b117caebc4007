"""Wiring: settings -> database, writer, queries, live broker, routes. The only file that knows them all."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rangewatch import __version__
from rangewatch_server import api, commands, ingest, live, static
from rangewatch_server.access import AccessMiddleware
from rangewatch_server.errors import ApiError
from rangewatch_server.queries import Queries
from rangewatch_server.settings import Settings
from rangewatch_server.store.engine import open_database
from rangewatch_server.store.tiles import TileError
from rangewatch_server.store.writer import Writer

logger = logging.getLogger("rangewatch.server")

READERS = 4  # page requests at once: below the reader connections, so that none waits for one


def create_app(settings: Settings) -> FastAPI:
    """The server's application. Opens (and migrates) the database at once, so a bad one is an error here.

    Raises `DatabaseError`.
    """
    engines = open_database(settings.database_url)
    broker = live.Broker()
    writer = Writer(engines, broker.publish)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = READERS
        broker.start()
        writer.start()
        yield
        writer.stop()
        engines.dispose()

    app = FastAPI(title="Rangewatch", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.settings = settings
    app.state.writer = writer
    app.state.broker = broker
    app.state.queries = Queries(engines.reader, settings.live_s, writer.merged)
    app.add_middleware(AccessMiddleware, settings=settings)
    for handled in (ApiError, RequestValidationError, HTTPException, TileError, Exception):
        app.add_exception_handler(handled, _error)
    for each in (ingest, live, api, commands, static):  # static last: it takes every page path
        app.include_router(each.router)
    return app


async def _error(_: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        retry = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return _answer(error.status, error.code, str(error), retry)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return _answer(422, "bad_parameter", f"{where}: {first['msg']}", {})
    if isinstance(error, TileError):
        return _answer(500, "damaged", f"some stored data of this run cannot be read: {error}", {})
    if not isinstance(error, HTTPException):
        logger.error("a request failed", exc_info=error)
        return _answer(500, "internal", "the server failed at this request; its log says more", {})
    return _answer(error.status_code, "not_allowed" if error.status_code == 405 else "not_found", str(error.detail), {})


def _answer(status: int, code: str, text: str, headers: dict[str, str]) -> Response:
    body = msgspec.json.encode({"error": text, "code": code})
    return Response(body, status, headers, media_type="application/json")
