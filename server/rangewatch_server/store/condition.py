"""The state the database is in: schema, sizes, room on the disk, and whether it can be written."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from functools import cache
from pathlib import Path

import msgspec
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, func, select, text

from rangewatch_server.store import tables
from rangewatch_server.store.engine import MIGRATIONS

MOUNTS = Path("/proc/self/mountinfo")
# WAL keeps its index in memory shared between processes, which hosts of a network file system do not have in common;
# and its locks are not always true (sqlite.org/wal.html, sqlite.org/howtocorrupt.html).
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.gcsfuse", "fuse.juicefs", "fuse.s3fs",
    "fuse.sshfs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
})  # fmt: skip
WAL_RESET_FIXED = (3, 51, 3)  # sqlite.org/wal.html#walresetbug


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Sizes are bytes; None is not known, or not there (PostgreSQL's disk is not this machine's)."""

    schema: str
    live_runs: int
    database_bytes: int | None
    wal_bytes: int | None = None
    free_bytes: int | None = None
    file_system: str | None = None


def read(reader: Engine, live_s: float) -> Condition:
    """Look at the database and its disk; some ms. Raises `SQLAlchemyError`, `OSError`."""
    since_ns = time.time_ns() - int(live_s * 1e9)
    streams = tables.streams.c
    live = (streams.state == "open") & (streams.rank >= 0) & (streams.last_seen_ns >= since_ns)
    with reader.connect() as connection:
        schema = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
        runs = int(connection.execute(select(func.count(streams.run_id.distinct())).where(live)).scalar_one())
        if reader.dialect.name != "sqlite":
            size = int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
            return Condition(schema=schema, live_runs=runs, database_bytes=size)
        path = Path(connection.execute(text("PRAGMA database_list")).one()[2])
    return Condition(
        schema=schema, live_runs=runs, database_bytes=path.stat().st_size, wal_bytes=_wal_bytes(path),
        free_bytes=shutil.disk_usage(path.parent).free, file_system=file_system(path),
    )  # fmt: skip


def touch(connection: Connection) -> None:
    """Write one row as it is: proves what a commit needs (the lock, a writable disk). Raises `SQLAlchemyError`."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))


@cache
def newest_schema() -> str:
    """The schema this program wants."""
    return str(ScriptDirectory(str(MIGRATIONS)).get_current_head())


def has_wal_reset_bug(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Whether SQLite may lose pages when a second connection checkpoints."""
    return version < WAL_RESET_FIXED


def file_system(path: Path) -> str | None:
    """The type of the file system `path` is on, as the kernel names it; None where /proc does not say."""
    try:
        lines = MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return _type_at(os.path.realpath(path), lines)


def _type_at(path: str, lines: list[str]) -> str | None:
    """The last mount whose point is `path` or above it, nearest first: later mounts cover earlier ones."""
    best, file_system = -1, None
    for line in lines:
        before, _, after = line.partition(" - ")
        if len(before.split(" ")) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])  # \040 is a blank
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:
            best, file_system = len(point), after.split(" ")[0]
    return file_system


def _wal_bytes(path: Path) -> int:
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0
