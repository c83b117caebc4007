"""`rangewatch backup FILE`: one moment of all runs as a SQLite file, from a running server or from a database."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import write_line
from rangewatch.commands.maintenance.requests import PLACE_ENVIRONMENT, add_place, offline, opened, reported, run
from rangewatch.core.command_parser import ERROR, INTERRUPTED, CommandParser, command_parser

PART_BYTES = 1 << 20
REPORT_BYTES = 64 << 20


CHECKED = {"tiles": b"RWT1", "samples": b"RWS1"}  # table -> how its payloads begin


def main(argv: Sequence[str]) -> int:
    """Write it; 0, 2 for an error, 130 when interrupted. FILE is there when all of it is, and was verified."""
    options = parser().parse_args(argv)
    return run("backup", lambda: _backup(options))


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "backup",
        "Copy all runs as they are at this moment into one SQLite file, while training goes on. `rangewatch restore` "
        "reads it again, on SQLite or PostgreSQL.",
        examples={
            "rangewatch backup runs.db": "of the running server",
            "rangewatch backup runs.db --db postgresql://user@host/name": "of a database, without a server",
        },
        statuses={0: "FILE is complete and was verified"} | ERROR | INTERRUPTED,
        environment=PLACE_ENVIRONMENT,
    )
    made.add_argument("file", type=Path, metavar="FILE", help="where to write it")
    add_place(made)
    made.add_argument("--replace", action="store_true", help="replace FILE when it is there")
    made.add_argument("--no-verify", action="store_true", help="do not read it again to check every tile")
    return made


def _backup(options: argparse.Namespace) -> int:
    target: Path = options.file
    if target.exists() and not options.replace:
        raise ServerError(f"{target} is there already; give another name, or --replace")
    with tempfile.TemporaryDirectory(prefix=".rangewatch-", dir=target.absolute().parent) as folder:
        path = Path(folder) / "backup.db"
        if options.db is not None:
            offline("backup")(options.db, path, target, reported)
        else:
            _receive(options.url, path)
        tiles = None if options.no_verify else verify(path)
        path.replace(target)
    seen = "not verified" if tiles is None else f"{tiles} tiles and samples verified"
    write_line(sys.stdout, f"{target}: {target.stat().st_size / 1e6:.1f} MB, {seen}")
    return 0


def _for_nobody_else(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # all that anybody trained is in it


def _receive(url: str, path: Path) -> None:
    reported("the server writes a snapshot")
    size = 0
    with opened("GET", url, "/api/v1/backup") as answer, open(path, "xb", opener=_for_nobody_else) as file:
        for part in answer.stream(PART_BYTES):
            file.write(part)
            if size // REPORT_BYTES != (size + len(part)) // REPORT_BYTES:
                reported(f"{(size + len(part)) / 1e6:.0f} MB received")
            size += len(part)
        os.fsync(file.fileno())


def _verified(connection: sqlite3.Connection, table: str, magic: bytes) -> int:
    """Rows of a table whose payloads begin with `magic` and a checksum of the rest."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is None:
        return 0  # a backup of an older version
    rows = 0
    for run_id, stream, payload in connection.execute(f"SELECT run_id, stream_id, payload FROM {table}"):  # noqa: S608
        if payload[:4] != magic or zlib.crc32(payload[8:]) != int.from_bytes(payload[4:8], "little"):
            where = f"{table} of run {run_id}, stream {stream}"
            raise ServerError(f"a row of {where} is damaged; --no-verify keeps the rest")
        rows += 1
    return rows


def verify(path: Path) -> int:
    """How many tiles and chunks of samples it holds. Raises `ServerError`: a wrong checksum, or SQLite finds faults."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise ServerError("the backup is damaged: PRAGMA quick_check finds faults")
            return sum(_verified(connection, table, magic) for table, magic in CHECKED.items())
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ServerError(f"the backup cannot be read: {error}") from None
