"""The checks of /readyz: what was found, whether that is enough, and what to do about it. Pure."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from rangewatch_server.settings import Settings
from rangewatch_server.store.condition import NETWORK_FILE_SYSTEMS, Condition, has_wal_reset_bug, newest_schema
from rangewatch_server.store.engine import first_line
from rangewatch_server.store.writer import QUEUE_MESSAGES, Writer

OK, WARNING, FAILED = "ok", "warning", "failed"
LARGE_WAL_BYTES = 256 << 20  # it is folded back at 16 MiB: sixteen times that means that a reader holds on to it
WAL_RESET_NOTE = (
    "SQLite before 3.51.3 can lose pages when one connection writes while another resets the WAL. Here one connection "
    "does both, so it does not happen; open the file from other programs read-only"
)

# By what the database says of a write that failed, SQLite or PostgreSQL; the first that fits.
WRITE_ADVICE = {
    "lock": "another program holds a lock on the database (a shell, a backup, a migration): end it",
    "full": "make room on the disk, or prune old runs",
    "space left": "make room on the disk, or prune old runs",
    "readonly": "the file or its disk is read-only: see its owner, its mode and the mount",
    "read-only": "the database takes no writes: see whether it is a standby",
    "connect": "see whether the database runs and can be reached",
}


class Check(msgspec.Struct, frozen=True):
    """One line of /readyz. `advice` is empty when there is nothing to do."""

    name: str
    state: str
    value: str | int | None = None
    advice: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What needs no database to know."""

    draining: bool
    writer_is_alive: bool
    queued: int


def live_facts(writer: Writer, *, draining: bool) -> Facts:
    """As it is now."""
    return Facts(draining, writer.is_alive, writer.queued)


def checks(
    found: Condition | Exception | None, written: bool | Exception | None, facts: Facts, settings: Settings
) -> list[Check]:
    """All of them. None for `found` and `written`: no answer in time."""
    listed = [_draining(facts), _written(written, facts), _queue(facts)]
    if isinstance(found, Condition):
        listed += [_schema(found), *_file_checks(found, settings)]
    else:
        said = "no answer in time" if found is None else first_line(found)
        listed.append(Check("database", FAILED, said, "see whether the database runs and can be reached"))
    return listed


def _draining(facts: Facts) -> Check:
    if facts.draining:
        return Check("draining", FAILED, "yes", "the server is stopping; send to another, or wait for the restart")
    return Check("draining", OK, "no")


def _written(written: bool | Exception | None, facts: Facts) -> Check:
    if not facts.writer_is_alive:
        return Check("write", FAILED, "the writer has ended", "restart the server; its log says why")
    if written is None:
        advice = "the database is locked, its disk does not answer, or the queue is long: see the log and the queue"
        return Check("write", FAILED, "no answer in time", advice)
    if isinstance(written, Exception):
        said = first_line(written)
        return Check("write", FAILED, said, _write_advice(said))
    return Check("write", OK, "works")


def _queue(facts: Facts) -> Check:
    value = f"{facts.queued} of {QUEUE_MESSAGES} messages"
    if facts.queued >= QUEUE_MESSAGES:
        return Check("queue", FAILED, value, "the writer does not keep up: agents get 429 and wait; see commit seconds")
    return Check("queue", OK, value)


def _schema(found: Condition) -> Check:
    if found.schema != newest_schema():
        advice = f"this program wants {newest_schema()}: another version has migrated the database; run that one"
        return Check("schema", FAILED, found.schema, advice)
    return Check("schema", OK, found.schema)


def _file_checks(found: Condition, settings: Settings) -> Iterator[Check]:
    """Those of a SQLite file."""
    if found.free_bytes is None:
        return
    note = WAL_RESET_NOTE if has_wal_reset_bug() else ""
    yield Check("sqlite", WARNING if note else OK, sqlite3.sqlite_version, note)
    yield _room(found.free_bytes, settings.least_free_bytes)
    wal = found.wal_bytes or 0
    advice = "a reader holds on to it: another program that has the file open?" if wal > LARGE_WAL_BYTES else ""
    yield Check("wal_bytes", WARNING if advice else OK, wal, advice)
    advice = network_advice(found.file_system)
    yield Check("file_system", WARNING if advice else OK, found.file_system, advice)


def _room(free: int, least: int) -> Check:
    if free < least:
        advice = f"under {least} bytes (--min-free-mib): make room, or prune old runs, before commits fail"
        return Check("disk_free_bytes", FAILED, free, advice)
    return Check("disk_free_bytes", OK, free)


def network_advice(kind: str | None) -> str:
    """What to say of a SQLite file on a file system of that type; empty when it is none of a network."""
    if kind not in NETWORK_FILE_SYSTEMS:
        return ""
    return (
        f"{kind} is a network file system: SQLite's write-ahead log needs memory that only one host has, and locks "
        "that may not hold there. Put the file on a local disk, or use PostgreSQL"
    )


def _write_advice(said: str) -> str:
    found = next((advice for sign, advice in WRITE_ADVICE.items() if sign in said.lower()), "see the log, and the disk")
    return f"{found}; agents keep and resend"
