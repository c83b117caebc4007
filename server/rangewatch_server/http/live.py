"""Live pages: a server-sent event when a run changed, never data. Coalesced, bounded, and cheap when nobody looks.

All pages hear the same, so what is sent is put together and encoded once for all of them, twice a second at most: a
thousand pages cost a thousand writes. A page that does not take what it was sent has its rest merged.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rangewatch_server.access.audit import client_of
from rangewatch_server.access.principals import Principal, Principals
from rangewatch_server.access.rate_limits import counted_as
from rangewatch_server.core.errors import ApiError, answers
from rangewatch_server.core.settings import MAX_STREAMS
from rangewatch_server.ingest.transaction import Changed

router = APIRouter()

MIN_INTERVAL_S = 0.5  # a run is announced at most twice a second, whatever its ranks send
PING_S = 15.0  # a comment on streams that have nothing to send: proxies close what is silent
MAX_CLIENTS = 1_000  # open streams: each is a socket and a task
CONNECTED = b": connected\nretry: 2000\n\n"
PING = b": ping\n\n"
MISSED = b"event: missed\ndata: {}\n\n"
CHANGES = "rangewatch-changes"  # header of each answer of the API


class _Sent:
    """Run -> (last step, version), and the same as events. One object for all pages that take it."""

    def __init__(self, changes: Mapping[int, tuple[int | None, int]]) -> None:
        self.changes = changes

    @cached_property
    def events(self) -> bytes:
        """As it is sent."""
        return b"".join(_event(run, step, version) for run, (step, version) in self.changes.items())


def _event(run: int, step: int | None, version: int) -> bytes:
    data = msgspec.json.encode({"run": run, "last_step": step, "version": version})
    return b"event: changed\ndata: %b\n\n" % data


class Broker:
    """Passes the writer's changes to the open streams. `publish` may be called from any thread."""

    def __init__(self, most_of_one: int = MAX_STREAMS) -> None:
        self.version = 0
        self._name = uuid.uuid4().hex[:12]  # another server has counted other changes
        self.most_of_one = most_of_one
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: set[_Client] = set()
        self._open_of = Counter[str]()
        self._pending: dict[int, tuple[int | None, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Set for `MIN_INTERVAL_S` after something was sent."""

    def start(self) -> None:
        """Remember the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(PING_S, self._ping)

    def publish(self, changes: list[Changed]) -> None:
        """Tell all streams; from the writer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, changes)

    @property
    def changes(self) -> str:
        """What there has been to send until now: the same text is the same changes."""
        return f"{self._name}.{self.version}"

    @property
    def streams(self) -> int:
        """Streams open now."""
        return len(self._clients)

    def open(self, name: str = "", may_stay: Callable[[], bool] = lambda: True) -> _Client:
        """A new stream's mailbox, of the client called so. Raises `ApiError` when there are too many."""
        if len(self._clients) >= MAX_CLIENTS:
            raise ApiError(503, "too_many_streams", f"{MAX_CLIENTS} live pages are open already", 10)
        if self._open_of[name] >= self.most_of_one:
            raise ApiError(429, "too_many_streams", f"{self.most_of_one} live pages of this client are open", 10)
        client = _Client(name, may_stay)
        self._clients.add(client)
        self._open_of[name] += 1
        return client

    def close(self, client: _Client) -> None:
        """Forget a stream."""
        if client in self._clients:
            self._clients.discard(client)
            self._open_of[client.name] -= 1
            self._open_of += Counter()  # drops what is at 0

    def recheck(self) -> None:
        """End the streams of those who may not look any more. From any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_revoked)

    def _end_revoked(self) -> None:
        for client in self._clients:
            if not client.may_stay():
                client.ended = True
                client.wake.set()

    def stop(self) -> None:
        """End all streams, so that the server can shut down."""
        for client in self._clients:
            client.ended = True
            client.wake.set()

    def _ping(self) -> None:
        """Wake all: who has nothing to send sends a comment. One timer, as one a stream would cost more than events."""
        if self._loop is not None:
            for client in self._clients:
                client.wake.set()
            self._loop.call_later(PING_S, self._ping)

    def _deliver(self, changes: Iterable[Changed]) -> None:
        self.version += 1
        self._pending.update({change.run: (change.last_step, self.version) for change in changes})
        if self._timer is None:
            self._emit()

    def _emit(self) -> None:
        """To all what has changed, and again when more has by the end of the interval."""
        self._timer = None
        if not self._pending or self._loop is None:
            return
        reported, self._pending = _Sent(self._pending), {}
        for client in self._clients:
            client.emit(reported)
        self._timer = self._loop.call_later(MIN_INTERVAL_S, self._emit)


class _Client:
    """What one page has not been sent yet: one entry a run, so a slow page costs nothing."""

    def __init__(self, name: str, may_stay: Callable[[], bool]) -> None:
        self.name = name
        self.may_stay = may_stay
        self.waiting: _Sent | None = None
        self.wake = asyncio.Event()
        self.ended = False

    def emit(self, reported: _Sent) -> None:
        """With what it has not taken yet."""
        self.waiting = reported if self.waiting is None else _Sent({**self.waiting.changes, **reported.changes})
        self.wake.set()

    async def next(self) -> bytes | None:
        """What to send now; None when it is over."""
        await self.wake.wait()
        self.wake.clear()
        reported, self.waiting = self.waiting, None
        if self.ended:
            return None
        return PING if reported is None else reported.events


class LiveResponse(Response):
    """A page's stream, until it goes or may not look any more. Takes its place only when it is sent: one too many has a
    status then.
    """

    media_type = "text/event-stream"

    def __init__(self, request: Request, seen: str | None) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ApiError` before the first byte."""
        broker: Broker = self._request.app.state.broker
        client = self._open(broker)
        missed = MISSED if self._seen not in (None, broker.changes) else b""
        sending = asyncio.create_task(self._reported(client, send, CONNECTED + missed))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            broker.close(client)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    def _open(self, broker: Broker) -> _Client:
        principals: Principals = self._request.app.state.principals
        principal: Principal = self._request.state.principal
        name = principal.session or counted_as(client_of(self._request.scope))
        return broker.open(name, lambda: principals.is_current(principal))

    async def _reported(self, client: _Client, send: Send, first: bytes) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        while (events := await client.next()) is not None:
            await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ChangesMiddleware:
    """Says on each answer of the API how many changes there had been when it was asked. Pure ASGI."""

    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        self.app = app
        self.broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self.app(scope, receive, send)
            return
        changes = self.broker.changes  # as of before anything is read

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[CHANGES] = changes
            await send(message)

        await self.app(scope, receive, sending)


EVENTS = answers(200, "Events `changed` and `missed`.", "text/event-stream")


@router.get("/api/v1/live", response_class=Response, responses=EVENTS)
async def live(request: Request, seen: Annotated[str | None, Query(max_length=64)] = None) -> Response:
    """Server-sent events `changed` with run, last_step and version; `missed` first where there were changes since
    `seen`, the header `rangewatch-changes` of an answer.
    """
    return LiveResponse(request, seen)
