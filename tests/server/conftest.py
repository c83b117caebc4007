"""Real databases, a real writer and a real server process; load made by hand so that every value is known."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from rangewatch import statistics, wire
from rangewatch.records import Batch, Catalogue, Event, Opening, RangeRows, RankInfo, SeriesRows, TensorEntry
from rangewatch_server.queries import Queries
from rangewatch_server.settings import Settings
from rangewatch_server.store.engine import Engines, open_database
from rangewatch_server.store.transaction import Answer
from rangewatch_server.store.writer import Writer
from tests import forked
from tests.server.databases import POSTGRES, Databases, lay_tables
from tests.server.server_log import ServerLog

WHOLE = ("call_count", "numel", "amax", "nan_count", "inf_count")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Makes databases on the PostgreSQL of this machine; CI must have one."""
    try:
        found = Databases(POSTGRES)
    except OperationalError:
        if os.environ.get("CI"):
            raise
        pytest.skip("no PostgreSQL here; set RANGEWATCH_TEST_POSTGRES")
    yield found
    found.end()


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """A database of its own, with the tables of one that a server has started on."""
    with databases.one() as url:
        yield url


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """A database of its own that no server has seen."""
    with databases.without_tables() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


class Store:
    """A database with its writer running; `send` waits for the acknowledgement."""

    def __init__(self, url: str) -> None:
        lay_tables(url)
        self.engines: Engines = open_database(url)
        self.writer = Writer(self.engines)
        self.writer.start()
        self.queries = Queries(self.engines.reader, live_s=15)

    def send(self, message: Opening | Batch) -> Answer:
        return self.send_all([message])[0]

    def send_all(self, messages: Sequence[Opening | Batch]) -> list[Answer]:
        """As agents do that do not wait for one another: the writer takes what waits in one transaction."""
        answers: list[Answer] = []
        for first in range(0, len(messages), 256):  # more than four times as many at once are refused
            bodies = [wire.encode(message) for message in messages[first : first + 256]]
            answers += [each.result(30) for each in [self.writer.submit(wire.decode(body), body) for body in bodies]]
        return answers

    def close(self) -> None:
        self.writer.stop()
        self.engines.dispose()


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    opened: list[Store] = []

    def make(url: str) -> Store:
        opened.append(Store(url))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(database_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(database_url)


def catalogue(
    tensors: int, dtype: str = "float16", kinds: tuple[str, ...] = ("output", "grad_output", "grad")
) -> Catalogue:
    entries = (
        TensorEntry(f"blocks.{i}.ff", kinds[i % len(kinds)], 0, dtype, (4, 8), i, "Linear") for i in range(tensors)
    )
    return Catalogue(statistics.ALL, tuple(entries))


def opening(known: Catalogue, run: str = "run", rank: int = 0, incarnation: str = "a", world_size: int = 1) -> Opening:
    return Opening(RankInfo(run, rank, world_size, rank, "host", incarnation, time.time_ns()), known)


def batch(
    known: Catalogue, sequence: int, steps: np.ndarray | range, columns: dict[str, Any] | None = None, *,
    run: str = "run", rank: int = 0, incarnation: str = "a", series: dict[str, Any] | None = None,
    events: tuple[Event, ...] = (),
) -> Batch:  # fmt: skip
    """A batch over all tensors: one call, 32 elements, amax 1, nothing non-finite, unless `columns` say otherwise."""
    at = np.asarray(steps, np.int64)
    shape = (len(known.tensors), len(at))
    usual = {"call_count": 1.0, "numel": 32.0, "amax": 1.0, "nan_count": 0.0, "inf_count": 0.0} | (columns or {})
    ranges = RangeRows(
        at, np.arange(shape[0]), {n: np.broadcast_to(np.asarray(v, float), shape) for n, v in usual.items()}
    )
    rows = tuple(
        SeriesRows(name, at, np.broadcast_to(np.asarray(v, float), at.shape)) for name, v in (series or {}).items()
    )
    digest = wire.catalogue_digest(known)
    return Batch(run, rank, incarnation, sequence, digest, ranges if len(at) else None, rows, events)


def in_own_loop(made: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a thread of its own: a worker that has run browser tests has a loop running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(made())).result(60)


class Server:
    """A real `rangewatch serve` on a free port; `log` has what it says on stderr."""

    def __init__(self, db: str, *arguments: str) -> None:
        lay_tables(Settings(db=db).database_url)
        command = ["-m", "rangewatch", "serve", "--port", "0", "--db", db, *arguments]
        self.process = forked.server.start(*command, stdout=PIPE, stderr=PIPE, text=True, errors="replace")
        assert self.process.stdout is not None and self.process.stderr is not None
        self.log = ServerLog(f"the server with {db}", self.process.stderr)
        self.process.stderr = None  # `communicate` would read it, too
        first = self.process.stdout.readline()
        if not first:
            self.process.communicate(timeout=20)
            raise AssertionError(f"server did not start: {self.log.whole()}")
        self.url = first.split()[-1]
        self.client = httpx.Client(base_url=self.url, timeout=30)
        for _ in range(400):
            try:
                self.client.get("/healthz")
                return
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(f"server did not answer: {self.log.text()}")

    def post(self, message: Opening | Batch | bytes, **headers: str) -> httpx.Response:
        body = message if isinstance(message, bytes) else wire.encode(message)
        return self.client.post("/api/v1/ingest", content=body, headers=headers)

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.client.close()
        self.process.communicate(timeout=20)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: str, db: str | None = None) -> Server:
        started.append(Server(db or str(tmp_path / "server.db"), *arguments))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()
