"""A backup: one consistent snapshot of all runs, always a SQLite file with our schema, from either database.

It is taken while the server runs. From SQLite by `VACUUM INTO` on a read-only connection, which sees one moment
and never checkpoints; from PostgreSQL by copying every table in one REPEATABLE READ transaction.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, Table, insert, select
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.store import tables
from rangewatch_server.store.engine import open_database

ROWS = 200  # of a table at a time: tiles have up to some 100 KiB
ROOM_BYTES = 256 << 20  # stay free on the disk: the database goes on growing meanwhile
POLL_S = 1.0
BUSY_MS = 30_000
OnProgress = Callable[[str], None]


def snapshot(engine: Engine, source: str, path: Path, reported: OnProgress) -> None:
    """Write one moment of the database to `path`, which must not exist. Raises `DatabaseError`.

    `engine` reads; `source` is the file of a SQLite database.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # for nobody else to read
        if engine.dialect.name == "sqlite":
            _vacuum_into(source, path, reported)
        else:
            _copy(engine, path, reported)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except (sqlite3.Error, SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or error  # SQLAlchemy's own text is the statement with all its values
        raise DatabaseError(f"cannot write the backup: {str(reason).strip().splitlines()[0]}") from None


def check_room(directory: Path, needed_bytes: int) -> None:
    """Raises `DatabaseError` when the disk has no room for that much."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes + ROOM_BYTES:
        raise DatabaseError(f"{needed_bytes / 1e6:.0f} MB are needed in {directory}, {free / 1e6:.0f} MB are free")


def _vacuum_into(source: str, path: Path, reported: OnProgress) -> None:
    connection = sqlite3.connect(f"file:{quote(source)}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        with _size_reported(path, reported):
            connection.execute("VACUUM INTO ?", (str(path),))
    finally:
        connection.close()


@contextmanager
def _size_reported(path: Path, reported: OnProgress) -> Iterator[None]:
    ended = threading.Event()

    def emit() -> None:
        while not ended.wait(POLL_S):
            reported(f"{path.stat().st_size / 1e6:.0f} MB written" if path.exists() else "reading")

    thread = threading.Thread(target=emit, name="rangewatch-backup", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _copy(engine: Engine, path: Path, reported: OnProgress) -> None:
    copies = open_database(f"sqlite:///{path}")
    try:
        _without_log(copies.writer)
        with engine.connect() as source, copies.writer.begin() as target:
            source.execute(select(1))  # the moment that is copied
            for table in tables.metadata.sorted_tables:
                reported(f"{table.name}: {_copy_table(source, target, table)} rows")
    finally:
        copies.dispose()


def _without_log(writer: Engine) -> None:
    """Rows go into the one file at once: all of them in a log first would need the room twice."""
    raw = writer.raw_connection()  # the pool's only one: it stays as it is now
    try:
        for pragma in ("journal_mode=DELETE", "synchronous=OFF"):  # the whole file is synced at the end
            raw.cursor().execute(f"PRAGMA {pragma}")
    finally:
        raw.close()


def _copy_table(source: Connection, target: Connection, table: Table) -> int:
    copied = 0
    rows: Any = source.execute(select(table).execution_options(yield_per=ROWS))
    for part in rows.partitions(ROWS):
        target.execute(insert(table), [dict(row._mapping) for row in part])
        copied += len(part)
    return copied
