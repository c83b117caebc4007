"""A backup as it is read again: somebody's file, trusted in nothing until it was examined.

It is opened read-only, with `trusted_schema=OFF`, and nothing but our tables and their indexes may be in it. Every
value's type and size is checked against its column before it goes anywhere; `rows` checks what bytes mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Float, Integer, LargeBinary, Table
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.store import tables
from rangewatch_server.store.engine import MIGRATIONS, open_database

MAGIC = b"SQLite format 3\0"
MAX_TEXT = 1 << 16  # bytes of a name, a shape or a reason
MAX_BLOB = 256 << 20  # bytes of a tile, a body or a catalogue
LIMIT_LENGTH = 0  # SQLITE_LIMIT_LENGTH
STATISTICS = ("sqlite_stat1", "sqlite_stat4")  # tables that ANALYZE makes: hints for SQLite's planner
INT32, INT64 = 2**31, 2**63


class BadBackup(Exception):
    """The file is no backup of ours, is newer than this version, or is damaged; one line says which."""


class BackupFile:
    """Rows of our tables, checked value by value."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, table: Table, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries, ordered by the primary key. `where` is ours; `values` go in by parameters."""
        names = ", ".join(column.name for column in table.columns)
        order = ", ".join(column.name for column in table.primary_key)
        query = f"SELECT {names} FROM {table.name} {where} ORDER BY {order}"  # noqa: S608 - names of our tables
        try:
            for row in self.connection.execute(query, values):
                yield {
                    column.name: _checked(table, column, value)
                    for column, value in zip(table.columns, row, strict=True)
                }
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise BadBackup(f"{table.name}: {error}") from None


@contextmanager
def open_backup(path: Path) -> Iterator[BackupFile]:
    """The backup at `path`, a copy of ours that is migrated when it is older. Raises `BadBackup`."""
    try:
        revision = _checked_revision(path)
        if revision != _head():
            _migrate(path, revision)
        connection = _open(path)
    except (sqlite3.Error, OSError, UnicodeError) as error:
        raise BadBackup(f"this is no backup of Rangewatch: {error}") from None
    try:
        yield BackupFile(connection)
    finally:
        connection.close()


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, check_same_thread=False)
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")
    if hasattr(connection, "setlimit"):  # Python 3.11
        connection.setlimit(LIMIT_LENGTH, MAX_BLOB)
    return connection


def _checked_revision(path: Path) -> str:
    """The revision of its schema, after a look at everything that could run by itself."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BadBackup("this is no SQLite file")
    connection = _open(path)
    try:
        _only_ours(connection)
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise BadBackup("the file is damaged: PRAGMA quick_check finds faults")
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    finally:
        connection.close()
    known = _revisions()
    if len(rows) != 1 or not isinstance(rows[0][0], str):
        raise BadBackup("this is no backup of Rangewatch: it has no version")
    if rows[0][0] not in known:
        raise BadBackup(f"the backup has schema {rows[0][0][:40]!r}, which is newer than this version of Rangewatch")
    return rows[0][0]


def _only_ours(connection: sqlite3.Connection) -> None:
    """Tables of our names and indexes on them; no view, trigger or virtual table."""
    ours = {*tables.metadata.tables, *tables.alerting.tables, "alembic_version", *STATISTICS}
    for kind, name, of, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        is_plain = not sql or not str(sql).upper().startswith("CREATE VIRTUAL")
        if kind not in ("table", "index") or of not in ours or not is_plain:
            raise BadBackup(f"this is no backup of Rangewatch: it holds the {str(kind)[:20]} {str(name)[:40]!r}")


def _revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()]


def _head() -> str:
    return _revisions()[0]


def _migrate(path: Path, revision: str) -> None:
    try:
        engines = open_database(f"sqlite:///{path}")
    except (DatabaseError, SQLAlchemyError) as error:
        raise BadBackup(f"the backup has schema {revision} and cannot be brought to this one: {error}") from None
    engines.dispose()


def _checked(table: Table, column: Column[Any], value: Any) -> Any:
    if value is None and column.nullable:
        return None
    kind = column.type
    if isinstance(kind, Float):
        is_good = isinstance(value, float | int)
    elif isinstance(kind, Integer):  # BigInteger is one
        most = INT32 if kind.__class__ is Integer else INT64
        is_good = isinstance(value, int) and -most <= value < most
    elif isinstance(kind, LargeBinary):
        is_good = isinstance(value, bytes) and len(value) <= MAX_BLOB
    else:
        is_good = isinstance(value, str) and "\0" not in value and len(value.encode()) <= MAX_TEXT
    if not is_good:
        raise BadBackup(f"{table.name}.{column.name} holds {str(value)[:40]!r}, which cannot be")
    return value
