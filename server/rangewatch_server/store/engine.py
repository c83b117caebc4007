"""Engines: one that writes, one that reads; and one server a SQLite file.

SQLite: WAL, and only the writer's connection ever checkpoints. SQLite before 3.51.3 can lose pages when one connection
writes while another resets the WAL (sqlite.org/wal.html#walresetbug); with a single checkpointer, which is also the
only writer, that moment does not exist. Readers are opened read-only and keep their transactions short.
Durability: with `sync="normal"` what was acknowledged survives the death of the process, and after a power cut or a
crash of the system the last commits of SQLite may be gone (a checkpoint syncs them: every 16 MiB of log); with
`sync="full"` each commit waits for the disk, and they survive that too. PostgreSQL syncs each commit unless its own
settings say otherwise; `full` asks for it whatever they say.

A server holds two advisory locks for as long as it writes (`hold`): two writers would each fold tiles from a memory the
other does not know. One is on a byte of the SQLite file itself, past all that SQLite locks, so that a hard link or
another mount of it is the same file; the other is on FILE.lock beside it, which says for people who holds it. Readers
need no lock. Both are the kernel's, so they end with the process however that ends. A network file system may have no
such lock, or one that other hosts do not see: there it is on the operator to start one server only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from rangewatch_server.core.errors import DatabaseError

try:
    import fcntl
except ImportError:  # Windows: no flock, and so no check
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rangewatch.server")

BUSY_TIMEOUT_MS = 5_000  # another process (a backup, a shell) may hold the lock this long before a commit is retried
READER_CONNECTIONS = 8
MIGRATION_LOCK = 0x52616E67  # apart from the runs' locks, which are small numbers
MIGRATIONS = Path(__file__).with_name("migrations")
MOST_BYTES = 1_000  # of a lock file read: ours have about 60
OWNER_BYTE = 1 << 62  # of the database file: SQLite itself locks 512 bytes at 1 GiB
FLOCK = struct.Struct("@hhqqi4x")  # C's struct flock on 64-bit Linux: type, whence, start, length, process
DAMAGED = (11, 26)  # SQLITE_CORRUPT and SQLITE_NOTADB, which Python has names for from 3.11 on
DAMAGED_STATES = ("XX001", "XX002")  # of PostgreSQL: data or an index is corrupted
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DamageNote:
    """What the database said of its own file or pages when it last found them damaged; None: it has not."""

    def __init__(self) -> None:
        self.text: str | None = None

    def note(self, context: Any) -> None:
        """Called with each error of the database."""
        error = context.original_exception
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # Python 3.11; the low byte is the kind
        state = getattr(error, "sqlstate", None) or ""
        if code in DAMAGED or "malformed" in str(error) or state in DAMAGED_STATES:
            self.text = first_line(error)


class Engines(msgspec.Struct, frozen=True):
    """The two ways into the database."""

    writer: Engine
    reader: Engine
    damage: DamageNote

    def dispose(self) -> None:
        """Close every connection."""
        self.reader.dispose()
        self.writer.dispose()


def open_database(url: str | URL, sync: str = "normal") -> Engines:
    """Open (and create, and migrate) the database at a SQLAlchemy URL. Raises `DatabaseError` in one line."""
    try:
        parsed = make_url(url)
        is_file = parsed.get_backend_name() == "sqlite"
        engines = _sqlite(parsed.database or "", sync) if is_file else _server(parsed, sync)
    except (SQLAlchemyError, OSError, ImportError, ValueError) as error:
        raise DatabaseError(f"cannot open {_shown(url)}: {first_line(error)}") from None
    for engine in (engines.writer, engines.reader):
        event.listen(engine, "handle_error", engines.damage.note)
    try:
        migrate(engines.writer)
    except (SQLAlchemyError, OSError) as error:
        engines.dispose()
        raise DatabaseError(f"cannot open {_shown(url)}: {first_line(error)}") from None
    except DatabaseError:
        engines.dispose()
        raise
    return engines


def migrate(engine: Engine) -> None:
    """Bring the schema to this version. Raises `DatabaseError` when the database is newer than this program."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        _one_at_a_time(connection)
        current = MigrationContext.configure(connection).get_current_revision()
        scripts = ScriptDirectory.from_config(config)
        head = scripts.get_current_head()
        if current == head:
            return
        if current is not None:
            _check_known(current, scripts)
            logger.warning("the database is brought from schema %s to %s; a large one takes minutes", current, head)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _check_known(current: str, scripts: ScriptDirectory) -> None:
    if current not in {revision.revision for revision in scripts.walk_revisions()}:
        raise DatabaseError(f"the database has schema {current!r}, which is newer than this version of Rangewatch")


def _one_at_a_time(connection: Connection) -> None:
    """Servers that start together migrate one after another; SQLite's BEGIN IMMEDIATE sees to that itself."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # a migration with data in place may take minutes
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")


def _sqlite(path: str, sync: str) -> Engines:
    if not path or path == ":memory:":
        raise ValueError("SQLite needs a file; in-memory databases are not kept")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writer = create_engine(URL.create("sqlite", database=path), poolclass=QueuePool, pool_size=1, max_overflow=0)
    event.listen(writer, "connect", lambda connection, _: _writer_pragmas(connection, sync))
    event.listen(writer, "begin", _begin_immediate)
    reader = create_engine(
        "sqlite://", creator=lambda: _open_read_only(path), poolclass=QueuePool, pool_size=READER_CONNECTIONS,
        max_overflow=0,
    )  # fmt: skip
    event.listen(reader, "connect", _reader_pragmas)
    event.listen(reader, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return Engines(writer, reader, DamageNote())


def _open_read_only(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)


def _writer_pragmas(connection: Any, sync: str) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "auto_vacuum=INCREMENTAL",  # before the first table; pages that prune frees go back to the disk in slices
        "journal_mode=WAL",
        f"synchronous={sync}",
        "foreign_keys=ON",
        "cache_size=-65536",  # 64 MiB
        "wal_autocheckpoint=4000",  # pages: 16 MiB of WAL before the writer folds it back
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _reader_pragmas(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "query_only=ON", "wal_autocheckpoint=0", "mmap_size=268435456"):
        connection.execute(f"PRAGMA {pragma}")


def _server(url: URL, sync: str) -> Engines:
    options_text = f"{url.query.get('options', '')} -c lock_timeout={BUSY_TIMEOUT_MS}"  # without it: for ever
    options = {"options": f"{options_text} -c synchronous_commit=on" if sync == "full" else options_text}
    writer = create_engine(url, pool_size=2, max_overflow=1, pool_pre_ping=True, connect_args=options)
    reader = create_engine(
        url, pool_size=READER_CONNECTIONS, max_overflow=0, pool_pre_ping=True, isolation_level="REPEATABLE READ"
    )
    event.listen(reader, "begin", lambda connection: connection.exec_driver_sql("SET TRANSACTION READ ONLY"))
    return Engines(writer, reader, DamageNote())


def _shown(url: str | URL) -> str:
    return make_url(url).render_as_string(hide_password=True)


def first_line(error: Exception) -> str:
    """What a database's error says, without the statement that SQLAlchemy puts beside it; at most 300 characters."""
    message = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return message.partition("\n")[0][:300]


class Holder(msgspec.Struct, frozen=True):
    """Who holds the file, as its lock file says."""

    pid: int
    host: str


@contextmanager
def hold(database: str | Path | URL) -> Iterator[None]:
    """Be the only writer of a SQLite file meanwhile; of other databases (a URL) nothing is held.

    Raises `DatabaseError` when another process holds it, or the lock file cannot be made.
    """
    path = _file(database)
    if path is None or fcntl is None:
        yield
        return
    descriptor = _take(path)
    try:
        with _hold_itself(path):
            yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)  # the file stays: removing it would race with the next one's lock
        os.close(descriptor)


@contextmanager
def _hold_itself(path: Path) -> Iterator[None]:
    """The file, whatever it is called. It is closed after SQLite has ended: that would lose its own locks by it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseError(f"cannot open {path}: {error.strerror}") from None
    try:
        _lock_byte(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock_byte(descriptor: int, path: Path) -> None:
    if not hasattr(fcntl, "F_OFD_SETLK"):  # not Linux: the lock beside the file is the only one
        return
    try:
        # Of the open file, not of the process: SQLite opens and closes the same file, which would end the other kind.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, OWNER_BYTE, 1, 0))
    except (BlockingIOError, PermissionError):
        raise DatabaseError(
            f"{path} is in use by another process, under another name or mount of the same file; end that one, give "
            "another --db, or use PostgreSQL, which takes several servers"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise DatabaseError(f"cannot lock {path}: {error.strerror}") from None
        logger.warning("%s is on a file system without locks: make sure that no second server writes it", path)


def _file(database: str | Path | URL) -> Path | None:
    if isinstance(database, str) and "://" in database:
        database = make_url(database)
    if isinstance(database, URL):
        if database.get_backend_name() != "sqlite" or not database.database:
            return None
        database = database.database
    return Path(database).resolve()  # one lock, whatever link the file is reached by


def _take(path: Path) -> int:
    lock = path.with_name(path.name + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseError(f"cannot open {path}: its lock file {lock.name}: {error.strerror}") from None
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, msgspec.json.encode(Holder(os.getpid(), socket.gethostname())))
    except OSError as error:
        os.close(descriptor)
        raise DatabaseError(f"cannot open {path}: its lock file {lock.name}: {error.strerror}") from None
    except DatabaseError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DatabaseError(
            f"{path} is in use by {_holder(descriptor)}; end that one, give another --db, or use PostgreSQL, which "
            "takes several servers"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        logger.warning("%s is on a file system without locks: make sure that no second server writes it", path)


def _holder(descriptor: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(descriptor, MOST_BYTES, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another process"
    host = "".join(each for each in holder.host[:100] if each.isprintable())
    return f"process {holder.pid} on {host}"
