"""Every request once, outside all checks: counted, logged at debug, and refused while the server drains. Pure ASGI."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rangewatch_server.access.middleware import METRICS, PROBES
from rangewatch_server.core.metrics import Metrics

logger = logging.getLogger("rangewatch.requests")

WATCHED = (*PROBES, METRICS)  # answered to the end: they say that the server drains
RETRY_AFTER_S = 2  # about what a restart takes
NO_ROUTE = "none"  # answered before a route was found: another site's page, no token, draining
DRAINING = msgspec.json.encode({"error": "the server is stopping; send again in a moment", "code": "draining"})


class TrafficMiddleware:
    """Added last, so that it sees what the access checks refuse as well."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began_s, status = time.monotonic(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = scope["app"].state.draining and scope["path"] not in WATCHED
            await (_refuse(sending) if refused else self.app(scope, receive, sending))
        finally:
            self._note(scope, status, time.monotonic() - began_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        template = str(getattr(route, "path", NO_ROUTE))
        self.metrics.answered(template, scope["method"], status)
        if logger.isEnabledFor(logging.DEBUG):
            fields = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
            logger.debug("request", extra=fields)


async def _refuse(send: Send) -> None:
    """503 for what comes on a connection that was open when the server began to stop."""
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(DRAINING)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()), (b"connection", b"close"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": DRAINING})
