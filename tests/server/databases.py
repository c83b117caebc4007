"""Databases for tests: copies of one that the migrations have made.

To make, migrate and drop one of PostgreSQL takes a second, most of it waiting for a disk, so the next one is made while
a test runs, and the last one dropped. The migrations of a SQLite file take longer than what most tests do with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from rangewatch_server.store.engine import open_database

POSTGRES = os.environ.get("RANGEWATCH_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")


def lay_tables(url: str | URL) -> None:
    """Put a file with the tables where a SQLite URL names one that is not there yet."""
    path = Path(make_url(url).database or "")
    if make_url(url).get_backend_name() == "sqlite" and path.parent.is_dir() and not path.exists():
        path.write_bytes(_file_with_tables())


@functools.cache
def _file_with_tables() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        open_database(f"sqlite:///{path}").dispose()
        return path.read_bytes()


class Databases:
    """`server` is the URL of any database of a PostgreSQL that lets us make more. Raises `OperationalError`."""

    def __init__(self, server: str) -> None:
        self._url = make_url(server)
        self._admin = create_engine(server, isolation_level="AUTOCOMMIT")
        self._template = self._create("template0")
        open_database(self._url_of(self._template)).dispose()
        self._others = ThreadPoolExecutor(1)
        self._drops: list[Future[None]] = []
        self._next: Future[str] = self._others.submit(self._create, self._template)

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """The URL of a database of its own, as a server has it when it has started for the first time."""
        name = self._next.result()
        self._next = self._others.submit(self._create, self._template)
        yield self._url_of(name)
        self._drop_soon(name)

    @contextlib.contextmanager
    def without_tables(self) -> Iterator[str]:
        """The URL of one that no server has seen."""
        name = self._create("template0")
        yield self._url_of(name)
        self._drop_soon(name)

    def end(self) -> None:
        """Leave nothing behind. Raises what kept a database from being dropped."""
        for name in (self._next.result(), self._template):
            self._drop_soon(name)
        self._others.shutdown()
        self._admin.dispose()
        for dropped in self._drops:
            dropped.result()

    def _url_of(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _create(self, template: str) -> str:
        name = f"rangewatch_test_{uuid.uuid4().hex[:12]}"
        with self._admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        return name

    def _drop_soon(self, name: str) -> None:
        self._drops.append(self._others.submit(self._drop, name))

    def _drop(self, name: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
