"""A server in this process, so that a test can take a protection away and watch the attack work: the proof is kept.

Every test here runs as it is, where the attack must fail, and weakened, where it must not: `weakened` is the latter.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.http.connections import BoundedConnection
from tests.browser.conftest import new_tab, pages  # noqa: F401 - fixtures
from tests.server.databases import lay_tables
from tests.server.process import Run

NUMBERS = itertools.count(1)


class Inside:
    """A server in a thread of this process."""

    def __init__(self, settings: Settings) -> None:
        lay_tables(settings.database_url)
        self.app = create_app(settings)
        config = uvicorn.Config(
            self.app, port=0, http=BoundedConnection, log_config=None, access_log=False, proxy_headers=False,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, name="server-inside")
        self.thread.start()
        while not self.uvicorn.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.port = self.uvicorn.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def post(self, message: StreamHeader | Batch | bytes, **headers: str) -> httpx.Response:
        body = message if isinstance(message, bytes) else wire.encode(message)
        return self.client.post("/api/v1/ingest", content=body, headers=headers)

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def raw(self, request: str) -> bytes:
        """The answer to bytes as they are: a client's library would tidy them."""
        where = urlsplit(self.url)
        with socket.create_connection((where.hostname, where.port)) as plain:
            plain.sendall(request.encode("latin-1"))
            return b"".join(iter(lambda: plain.recv(65536), b""))

    def get_raw(self, path: str, host: str = "127.0.0.1") -> bytes:
        """The answer to a GET of just these characters."""
        return self.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")

    def stop(self) -> None:
        self.client.close()
        self.app.state.broker.stop()
        self.uvicorn.should_exit = True
        self.thread.join(20)


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Callable[..., Inside]]:
    """Starts a server of this process: `inside(token=...)`."""
    started: list[Inside] = []

    def start(**settings: Any) -> Inside:
        started.append(Inside(Settings(**{"db": str(tmp_path / "inside.db"), **settings})))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def shared_inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One for all tests of a module that want no more of it than runs of their own: `own_run`."""
    server = Inside(Settings(db=str(tmp_path_factory.mktemp("inside") / "inside.db")))
    yield server
    server.stop()


@pytest.fixture
def own_run(shared_inside: Inside) -> Run:
    """A run of the test's own on the server of this process."""
    return Run(shared_inside, f"run {next(NUMBERS)}")  # type: ignore[arg-type] # it is asked alike


@pytest.fixture(params=[False, True], ids=["as it is", "weakened"])
def weakened(request: pytest.FixtureRequest) -> bool:
    """Whether the test takes the protection away."""
    return bool(request.param)


@contextmanager
def logged(level: int = logging.DEBUG) -> Iterator[list[logging.LogRecord]]:
    """All records of the server's loggers and uvicorn's."""
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    with ExitStack() as stack:
        for name in ("rangewatch", "uvicorn"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            stack.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            logger.setLevel(level)
        yield kept
