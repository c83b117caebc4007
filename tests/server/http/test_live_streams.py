"""Streams of live pages: told at once and then twice a second at most; a page that takes nothing is merged for."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from rangewatch_server.http import live
from rangewatch_server.http.live import PING, Broker
from rangewatch_server.ingest.transaction import Changed
from tests.server.own_loop import in_own_loop
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def reported(events: bytes | None) -> list[tuple[int, int | None]]:
    """(run, last step) of each event."""
    assert events is not None
    data = [json.loads(line[6:]) for line in events.decode().splitlines() if line.startswith("data: ")]
    return [(each["run"], each["last_step"]) for each in data]


def in_loop(work: Callable[[Broker], Any]) -> None:
    async def made() -> None:
        broker = Broker()
        broker.start()
        await work(broker)

    in_own_loop(made)


def test_the_first_change_is_told_at_once_and_the_rest_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_INTERVAL_S", 0.05)

    async def work(broker: Broker) -> None:
        one, other = broker.open(), broker.open()
        broker._deliver([Changed(1, 5)])
        first = await one.next()
        assert reported(first) == [(1, 5)] and first is await other.next(), "encoded once"
        for step in (6, 7, 8):
            broker._deliver([Changed(1, step), Changed(2, None)])
        assert reported(await one.next()) == [(1, 8), (2, None)]

    in_loop(work)


def test_a_page_that_takes_nothing_has_one_entry_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_INTERVAL_S", 0.001)

    async def work(broker: Broker) -> None:
        slow, quick = broker.open(), broker.open()
        for step in range(50):
            broker._deliver([Changed(step % 2, step)])
            await quick.next()
        assert sorted(reported(await slow.next())) == [(0, 48), (1, 49)]

    in_loop(work)


def test_a_quiet_stream_has_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PING_S", 0.01)

    async def work(broker: Broker) -> None:
        client = broker.open()
        assert await client.next() == PING
        assert await client.next() == PING

    in_loop(work)


def test_the_end_is_the_end() -> None:
    async def work(broker: Broker) -> None:
        stopped, stranger = broker.open(), broker.open("x", lambda: False)
        broker.recheck()
        assert await stranger.next() is None
        broker.stop()
        assert await stopped.next() is None

    in_loop(work)


def test_a_page_that_goes_gives_its_place_back(server: Server) -> None:
    """Also one that goes while nothing is told."""
    page = socket.create_connection(("127.0.0.1", server.client.base_url.port or 0))
    page.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    head = b""
    while b": connected" not in head:
        head += page.recv(4_096)
    assert b"text/event-stream" in head and b"x-accel-buffering: no" in head and b"content-length" not in head
    assert "rangewatch_live_streams 1.0" in server.client.get("/metrics").text
    server.post(opening(KNOWN))
    server.post(batch(KNOWN, 0, range(4)))
    while b'"last_step":3' not in head:
        head += page.recv(4_096)
    page.close()
    while "rangewatch_live_streams 0.0" not in server.client.get("/metrics").text:
        time.sleep(0.01)


def test_many_pages_hear_of_a_change(run: Run) -> None:
    async def listen() -> None:
        readers = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", run.server.client.base_url.port)
            writer.write(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            readers.append((reader, writer))
        for reader, _ in readers:
            await reader.readuntil(b": connected")
        await asyncio.to_thread(run.post, opening(KNOWN), batch(KNOWN, 0, range(4)))
        for reader, writer in readers:
            while b'"last_step":3' not in (line := await reader.readline()) or f'"run":{run.id},'.encode() not in line:
                pass
            writer.close()

    in_own_loop(listen)


def first_event(server: Server, seen: str, sequence: int) -> str:
    """Its name: `missed`, or `changed` of the batch that is sent once the stream is open."""
    with server.client.stream("GET", "/api/v1/live", params={"seen": seen}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        server.post(batch(KNOWN, sequence, range(4 * sequence, 4 * sequence + 4)))
        return next(line for line in lines if line.startswith("event: ")).removeprefix("event: ")


def test_a_page_is_told_whether_it_missed_a_change(server: Server) -> None:
    server.post(opening(KNOWN))
    seen = ""
    while seen != server.client.get("/api/v1/runs/1").headers[live.CHANGES]:  # told in the loop, after the answer
        seen = server.client.get("/api/v1/runs/1").headers[live.CHANGES]
    assert first_event(server, seen, 0) == "changed"
    assert first_event(server, seen, 1) == "missed", "that change"
    assert first_event(server, "another.1", 2) == "missed", "another server counts others"
    assert live.CHANGES not in server.client.get("/").headers


def test_what_changes_while_an_answer_is_read_was_missed() -> None:
    async def work(broker: Broker) -> None:
        before, sent = broker.changes, []

        async def reading(scope: Scope, receive: Receive, send: Send) -> None:
            broker._deliver([Changed(1, 5)])
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message: Message) -> None:
            sent.append(message)

        await live.ChangesMiddleware(reading, broker)({"type": "http", "path": "/api/v1/runs"}, None, send)
        assert dict(sent[0]["headers"])[live.CHANGES.encode()].decode() == before != broker.changes

    in_loop(work)
