"""What a connection may cost: bodies nobody waits for, and TLS, which begins and ends with the other side's word."""

from __future__ import annotations

import asyncio.constants
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from rangewatch_server.http import connections
from rangewatch_server.http.connections import ConnectionLimit
from tests import forked
from tests.server.certificates import Pair, made, until_it_listens

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
PATIENCE_S = 60.0  # what is not closed by then is not closed at all


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(tmp_path_factory.mktemp("tls"), "own")


async def empty(_scope: Any, _receive: Any, send: Any) -> None:
    """Answers at once, and reads no body."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextmanager
def serving(
    context: ssl.SSLContext | None = None, limit: ConnectionLimit | None = None
) -> Iterator[Callable[..., socket.socket]]:
    """A server of this process; gives what connects to it, from an address of this machine."""
    config = uvicorn.Config(
        empty, http=connections.bounded(limit or ConnectionLimit()), lifespan="off", log_config=None,
        timeout_keep_alive=600,
        ssl_context_factory=None if context is None else lambda *_: context,
    )  # fmt: skip
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    address = listening.getsockname()
    thread.start()
    yield lambda source="127.0.0.1": socket.create_connection(address, PATIENCE_S, (source, 0))
    server.should_exit = True
    thread.join()


def test_a_body_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was sent. A byte of it ends uvicorn's wait for the next request, and nothing began another."""
    monkeypatch.setattr(connections, "LEFTOVER_S", 0.05)
    for head in (b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        with serving() as connect, connect() as slow:
            slow.sendall(GET + head)
            assert slow.recv(65536).startswith(b"HTTP/1.1 204 "), head
            slow.sendall(b"5")
            assert slow.recv(1) == b"", head


def test_a_body_that_comes_after_its_answer_is_read_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as connect, connect() as late:
        late.sendall(GET + b"Content-Length: 3\r\n\r\n")
        assert late.recv(65536).startswith(b"HTTP/1.1 204 ")
        late.sendall(b"abc" + GET + b"\r\n")
        assert late.recv(65536).startswith(b"HTTP/1.1 204 ")


def test_a_handshake_that_does_not_come_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", asyncio.constants.SSL_HANDSHAKE_TIMEOUT)
    monkeypatch.setattr(connections, "HEADERS_S", 0.05)
    connections.bound_handshakes()
    with serving(pair.context()) as connect, connect() as silent:
        silent.sendall(b"\x16")
        assert silent.recv(1) == b""


def test_who_does_not_say_goodbye_is_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that closes neither side, as one in a pool: headers that do not come end its connection, too."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.05)
    monkeypatch.setattr(connections, "GOODBYE_S", 0.05)
    gone = threading.Event()
    lost = connections.BoundedConnection.connection_lost
    monkeypatch.setattr(
        connections.BoundedConnection, "connection_lost", lambda self, exc: (lost(self, exc), gone.set())
    )
    with serving(pair.context()) as connect, connect() as plain:
        silent = pair.trust().wrap_socket(plain, server_hostname="127.0.0.1")
        silent.sendall(b"GET")
        assert gone.wait(PATIENCE_S)
        silent.close()


def test_a_server_that_stops_does_not_wait_for_idle_clients(pair: Pair, tmp_path: Path) -> None:
    """Over TLS asyncio did, for as long as a stop may take: each restart took 20 s."""
    command = ["-m", "rangewatch", "serve", "--port", "0", "--db", tmp_path / "a.db"]
    tls = ["--tls-cert", pair.cert, "--tls-key", pair.key]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked.server.start(*command, *tls, **pipes, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        until_it_listens(url)
        idle = httpx.Client(verify=pair.trust())
        assert idle.get(f"{url}/healthz").status_code == 200
        process.terminate()
        _, said = process.communicate()
        idle.close()
    assert process.returncode == 0
    assert "graceful shutdown exceeded" not in said


def refused(plain: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the body of what is said to a connection that has asked for something."""
    plain.sendall(GET + b"\r\n")
    answer = http.client.HTTPResponse(plain)
    answer.begin()
    assert answer.headers["connection"] == "close"
    assert answer.headers["retry-after"] == "10"
    return answer.status, json.loads(answer.read())


def is_served(plain: socket.socket) -> bool:
    plain.sendall(GET + b"\r\n")
    return plain.recv(65536).startswith(b"HTTP/1.1 204 ")


def test_connections_have_a_bound() -> None:
    limit = ConnectionLimit(2)
    with serving(limit=limit) as connect, connect() as one, connect() as other:
        assert is_served(one) and is_served(other)
        with connect() as third:
            status, said = refused(third)
            assert (status, said["code"]) == (503, "too_many_connections")
        assert is_served(other), "who is connected is served"
        one.close()
        while True:  # until the server has seen its end
            with connect() as again:
                if is_served(again):
                    break
    assert limit.open == 0


def test_who_is_refused_over_tls_is_told(pair: Pair) -> None:
    with serving(pair.context(), ConnectionLimit(1)) as connect, connect() as plain, connect() as second:
        one = pair.trust().wrap_socket(plain, server_hostname="127.0.0.1")
        assert is_served(one)
        assert refused(pair.trust().wrap_socket(second, server_hostname="127.0.0.1"))[0] == 503


def test_who_is_refused_and_stays_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of very many no more than some are told, or the refused would hold the places."""
    monkeypatch.setattr(connections, "REFUSED_S", 0.05)
    monkeypatch.setattr(connections, "MOST_ANSWERED", 1)
    with serving(limit=ConnectionLimit(0)) as connect, connect() as reported, connect() as untold:
        assert reported.recv(65536).startswith(b"HTTP/1.1 503 ")
        for each in (reported, untold):
            with contextlib.suppress(ConnectionError):
                assert each.recv(65536) == b""


def test_the_rest_of_the_server_keeps_its_files() -> None:
    """Connections used to take all that the system allows: no token could be read then, and nothing committed."""
    program = """if True:
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 600))
        from rangewatch_server.http.connections import raise_file_limit
        print(*raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
        print(*raise_file_limit())
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        print(*raise_file_limit())
    """
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:3] == ["325 75 600 600", "325 75", "50 12"]
