"""Wiring: settings -> database, writer, queries, live broker, routes. The only file that knows them all."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rangewatch.core.version import VERSION
from rangewatch_server.access.body import Room
from rangewatch_server.access.middleware import AccessMiddleware
from rangewatch_server.access.principals import Principals
from rangewatch_server.access.rate_limits import ALL_CHANGES, ALL_LOGINS, CHANGES, LOGIN, RateLimit
from rangewatch_server.alerts.config import Config, ConfigError, Otlp, read
from rangewatch_server.alerts.delivery import Delivery
from rangewatch_server.alerts.evaluator import Evaluator
from rangewatch_server.core import msgspec_warmup
from rangewatch_server.core.errors import ERRORS, ApiError
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.core.settings import Settings
from rangewatch_server.http import health, live, static
from rangewatch_server.http.health import Health
from rangewatch_server.http.metrics import rank_gauges
from rangewatch_server.http.metrics.push import MetricsPush
from rangewatch_server.http.request_log import TrafficMiddleware
from rangewatch_server.ingest.announce import Listener
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.maintenance.retention.background import Retention
from rangewatch_server.maintenance.retention.policy import GB, Policy
from rangewatch_server.query.reader import Queries
from rangewatch_server.routes import (
    access,
    alerts,
    collectives,
    commands,
    compare,
    diagnosis,
    experts,
    figures,
    ingest,
    loss_scale,
    machines,
    maintenance,
    ranks,
    report,
    runs,
    scales,
    slices,
    whatif,
)
from rangewatch_server.routes.dependencies import error_answer
from rangewatch_server.store.engine import Engines, open_database
from rangewatch_server.store.tiles import TileError
from rangewatch_server.store.tokens import AccessStore

READERS = 4  # page requests at once: below the reader connections, so that none waits for one
OPENAPI_PATH = "/api/v1/openapi.json"  # below /api/, where a token is asked for
# Static last: it takes every page path.
ROUTES = (
    health,
    access,
    ingest,
    live,
    runs,
    figures,
    slices,
    whatif,
    scales,
    collectives,
    ranks,
    machines,
    diagnosis,
    experts,
    rank_gauges,
    alerts,
    loss_scale,
    commands,
    compare,
    report,
    maintenance,
    static,
)


class Parts(msgspec.Struct, frozen=True):
    """What works while the application does."""

    engines: Engines
    principals: Principals
    broker: live.Broker
    metrics: Metrics
    writer: Writer
    queries: Queries
    delivery: Delivery
    alerts: Evaluator
    retention: Retention
    listener: Listener | None
    push: MetricsPush | None


def create_app(settings: Settings) -> FastAPI:
    """The server's application. Opens (and migrates) the database at once, so a bad one is an error here.

    Raises `DatabaseError`.
    """
    parts = _parts(settings)
    app = FastAPI(
        title="Rangewatch", version=VERSION, lifespan=_lifespan(parts), docs_url=None, redoc_url=None,
        openapi_url=OPENAPI_PATH, responses=ERRORS,
    )  # fmt: skip
    app.router.redirect_slashes = False  # `GET ?x` would be sent to the Host that it names
    _share(app, settings, parts)
    changes = RateLimit("changes", CHANGES, ALL_CHANGES)
    app.add_middleware(live.ChangesMiddleware, broker=parts.broker)
    app.add_middleware(AccessMiddleware, principals=parts.principals, changes=changes)
    app.add_middleware(TrafficMiddleware, metrics=parts.metrics)  # the last one added is the outermost
    for handled in (ApiError, RequestValidationError, HTTPException, TileError, Exception):
        app.add_exception_handler(handled, _error)
    for each in ROUTES:
        app.include_router(each.router)
    return app


def _parts(settings: Settings) -> Parts:
    msgspec_warmup.learn()
    engines = open_database(settings.database_url, settings.sync)
    broker, metrics, server_id = live.Broker(settings.max_streams), Metrics(), uuid.uuid4().hex
    principals = Principals(settings, AccessStore(settings.database_url), broker.recheck)
    principals.load()
    writer = Writer(engines, broker.publish, metrics, server_id, settings.reserved_bytes)
    queries = Queries(engines.reader, settings.live_s, writer.merged)
    config = _config(settings)
    delivery = Delivery(queries, writer, config, settings.address, metrics)
    alerts = Evaluator(queries, writer, config, metrics, delivery.wake, settings.alerts_percent / 100)
    writer.on_change = lambda changes: _publish(changes, broker, alerts)
    keep_bytes = None if settings.keep_gb is None else int(settings.keep_gb * GB)
    retention = Retention(writer, engines, Policy(settings.keep_days, keep_bytes))
    listener = _listener(engines, server_id, broker, writer)
    push = MetricsPush(queries, metrics, settings.otlp, settings.otlp_every_s) if settings.otlp else None
    return Parts(engines, principals, broker, metrics, writer, queries, delivery, alerts, retention, listener, push)


def _config(settings: Settings) -> Config:
    """Of the file of --alerts, and with --otlp one target more. Raises `ConfigError`."""
    config = read(settings.alerts) if settings.alerts else Config()
    if not settings.otlp:
        return config
    target = Otlp(name="otlp", endpoint=settings.otlp, severity="info")
    if any(each.name == target.name for each in config.targets):
        raise ConfigError(f"{settings.alerts}: --otlp sends to a target named 'otlp'; call the file's own otherwise")
    return msgspec.structs.replace(config, otlp=(*config.otlp, target))


def _publish(changes: list[Changed], broker: live.Broker, alerts: Evaluator) -> None:
    broker.publish(changes)
    alerts.changed(changes)


def _lifespan(parts: Parts) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Starts the parts in order, and stops them in the other."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = READERS
        parts.principals.start()
        parts.broker.start()
        parts.writer.start()
        parts.delivery.start()
        parts.alerts.start()
        parts.retention.start()
        if parts.listener is not None:
            parts.listener.start()
        if parts.push is not None:
            parts.push.start()
        yield
        if parts.push is not None:
            parts.push.stop()
        if parts.listener is not None:
            parts.listener.stop()
        parts.retention.stop()
        parts.alerts.stop()
        parts.delivery.stop()
        parts.writer.stop()
        parts.principals.stop()
        parts.engines.dispose()

    return lifespan


def _share(app: FastAPI, settings: Settings, parts: Parts) -> None:
    """What the routes find in `request.app.state`."""
    state, metrics = app.state, parts.metrics
    state.settings, state.metrics = settings, metrics
    state.principals, state.room = parts.principals, Room(ingest.ROOM_BYTES)
    state.guesses, state.logins = RateLimit("logins", LOGIN, ALL_LOGINS), RateLimit("logins", LOGIN, ALL_LOGINS)
    state.writer, state.broker, state.retention = parts.writer, parts.broker, parts.retention
    state.queries, state.alerts, state.delivery = parts.queries, parts.alerts, parts.delivery
    state.health = Health(parts.engines, parts.writer, settings, metrics)
    state.draining = False  # `serve` sets it at the first signal
    metrics.watch("rangewatch_live_streams", "Pages listening for changes.", lambda: parts.broker.streams)
    metrics.watch("rangewatch_rules_seconds", "Processor time that the rules have taken.", lambda: parts.alerts.spent_s)
    metrics.watch("rangewatch_draining", "1 while the server stops.", lambda: state.draining)


def _listener(engines: Engines, server_id: str, broker: live.Broker, writer: Writer) -> Listener | None:
    """Hears of what other servers on the same database commit; SQLite has no others."""
    if engines.writer.dialect.name != "postgresql":
        return None
    return Listener(
        engines.writer, server_id,
        lambda changes: broker.publish([Changed(run, step) for run, step in changes]),
        lambda _: writer.reload_commands(),
    )  # fmt: skip


async def _error(request: Request, error: Exception) -> Response:
    answer = error_answer(error)
    if isinstance(error, ApiError) and request.url.path == ingest.PATH:
        request.app.state.metrics.refused(error.code)
    headers = {} if answer.retry_after_s is None else {"retry-after": str(answer.retry_after_s)}
    return Response(answer.body(), answer.status, headers, media_type="application/json")
