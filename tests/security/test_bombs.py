"""Few bytes that become many, and many clients that hold back a little."""

from __future__ import annotations

import selectors
import socket
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from rangewatch import wire
from rangewatch.wire import WireError, messages
from rangewatch_server.access.body import Room
from rangewatch_server.http import connections
from rangewatch_server.routes import ingest
from rangewatch_server.store import names
from tests.security.conftest import Inside
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
UNPACKED = 160 << 20


def test_a_bomb_is_not_unpacked(weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(UNPACKED))
    assert len(bomb) < 32 << 10
    if weakened:
        monkeypatch.setattr(messages, "MAX_DECOMPRESSED_BYTES", 1 << 40)
    tracemalloc.start()
    with pytest.raises(WireError):
        wire.decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (peak >= UNPACKED) == weakened


def held_back(server: Inside, size: int) -> socket.socket:
    """A body that lacks its last byte."""
    plain = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
    plain.sendall(head.encode() + b"x" * (size - 1))
    return plain


def test_bodies_under_way_have_a_bound_together(
    inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, most = 1 << 20, 4 << 20
    monkeypatch.setattr(ingest, "ROOM_BYTES", 1 << 40 if weakened else most)
    server = inside()
    room: Room = server.app.state.room
    before = room.left_bytes
    open_ones = [held_back(server, size) for _ in range(8)]
    wanted = 8 * (size - 1)

    def held() -> int:
        return before - room.left_bytes

    if weakened:
        while held() < wanted:
            server.client.get("/healthz")
    else:
        refused: list[socket.socket] = []
        with selectors.DefaultSelector() as waiting:  # select() itself takes no descriptor above 1,023
            for each in open_ones:
                waiting.register(each, selectors.EVENT_READ)
            while len(refused) < 4:
                answered = [each for each in open_ones if each in {key.fileobj for key, _ in waiting.select()}]
                assert {each.recv(12) for each in answered} == {b"HTTP/1.1 429"}
                refused += answered
                for each in answered:
                    waiting.unregister(each)
        assert held() <= most
    for each in open_ones:
        each.close()
    while room.left_bytes < before:  # what the gone ones held is free again
        server.client.get("/healthz")
    assert server.post(opening(KNOWN)).status_code == 202


def test_a_message_holds_room_for_what_it_unpacks_to(inside: Callable[..., Inside]) -> None:
    server = inside()
    server.app.state.room = Room(40 << 10)
    packed = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    answer = server.post(packed)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "busy", "1")
    assert server.app.state.room.left_bytes == 40 << 10


def test_who_does_not_read_is_cut_off(
    inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED_S", 1e6 if weakened else 0.2)
    server = inside()
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plain.connect(("127.0.0.1", server.port))
    asked = "GET /static/vendor/plotly-cartesian.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(14):  # 20 MB: more than the kernels' buffers hold
        plain.sendall(asked.encode())
    ours = plain.getsockname()

    def is_open() -> bool:
        return any(each.client == ours for each in list(server.uvicorn.server_state.connections))

    if weakened:
        for _ in range(50):
            server.client.get("/healthz")
        assert is_open()
    else:
        while is_open():
            server.client.get("/healthz")
    plain.close()


def test_live_pages_of_one_client_have_a_bound(inside: Callable[..., Inside], weakened: bool) -> None:
    server = inside(max_streams=1_000_000 if weakened else 3)
    broker = server.app.state.broker
    streams = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    said = []
    for each in streams:
        each.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        said.append(each.recv(12)[9:12])
    assert said == [b"200"] * (5 if weakened else 3) + [b"429"] * (0 if weakened else 2)
    for each in streams:
        each.close()
    while broker.streams:
        server.client.get("/healthz")
    assert not broker._open_of, "nothing is remembered of clients that have gone"


def test_runs_have_a_bound(inside: Callable[..., Inside], weakened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_RUNS", 1_000 if weakened else 2)
    server = inside()
    assert [server.post(opening(KNOWN, name)).status_code for name in ("a", "b")] == [202, 202]
    third = server.post(opening(KNOWN, "c"))
    assert (third.status_code == 202) == weakened
    if not weakened:
        assert (third.status_code, third.json()["code"], third.headers["retry-after"]) == (429, "too_many_runs", "60")
        assert "keeps 2 runs already" in third.json()["error"]
        assert server.post(batch(KNOWN, 0, range(4), run="a")).status_code == 202, "those there are go on"
        assert server.client.delete("/api/v1/runs/2").status_code == 200
        assert server.post(opening(KNOWN, "c")).status_code == 202
