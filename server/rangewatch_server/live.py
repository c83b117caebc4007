"""Live pages: a server-sent event when a run changed, never data. Coalesced, bounded, and cheap when nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable

from fastapi import APIRouter, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from rangewatch_server.errors import ApiError
from rangewatch_server.store.transaction import Changed

router = APIRouter()

MIN_INTERVAL_S = 0.5  # a run is told at most twice a second, whatever its ranks send
MAX_CLIENTS = 1_000  # open streams: each is a socket and a small dict


class Broker:
    """Passes the writer's changes to the open streams. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self.version = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: set[_Client] = set()

    def start(self) -> None:
        """Remember the running loop."""
        self._loop = asyncio.get_running_loop()

    def publish(self, changes: list[Changed]) -> None:
        """Tell all streams; from the writer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, changes)

    @property
    def streams(self) -> int:
        """Streams open now."""
        return len(self._clients)

    def open(self) -> _Client:
        """A new stream's mailbox. Raises `ApiError` when there are too many."""
        if len(self._clients) >= MAX_CLIENTS:
            raise ApiError(503, "too_many_streams", f"{MAX_CLIENTS} live pages are open already", 10)
        client = _Client()
        self._clients.add(client)
        return client

    def close(self, client: _Client) -> None:
        """Forget a stream."""
        self._clients.discard(client)

    def stop(self) -> None:
        """End all streams, so that the server can shut down."""
        for client in self._clients:
            client.ended = True
            client.wake.set()

    def _deliver(self, changes: Iterable[Changed]) -> None:
        self.version += 1
        for client in self._clients:
            client.pending.update({change.run: (change.last_step, self.version) for change in changes})
            client.wake.set()


class _Client:
    """What one page has not been told yet: one entry a run, so a slow page costs nothing."""

    def __init__(self) -> None:
        self.pending: dict[int, tuple[int | None, int]] = {}
        self.wake = asyncio.Event()
        self.ended = False


@router.get("/api/v1/live", response_class=EventSourceResponse)
async def live(request: Request) -> AsyncIterable[ServerSentEvent]:
    """Server-sent events `changed` with run, last_step and version."""
    broker: Broker = request.app.state.broker
    client = broker.open()
    try:
        yield ServerSentEvent(comment="connected", retry=2_000)
        while True:
            await client.wake.wait()
            if client.ended:
                return
            client.wake.clear()
            pending, client.pending = client.pending, {}
            for run, (step, version) in pending.items():
                yield ServerSentEvent(event="changed", data={"run": run, "last_step": step, "version": version})
            await asyncio.sleep(MIN_INTERVAL_S)
    finally:
        broker.close(client)
