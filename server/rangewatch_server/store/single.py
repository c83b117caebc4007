"""One server a SQLite file: an advisory lock on FILE.lock beside it, held for as long as the process writes.

Two writers would each fold tiles from a memory the other does not know. Readers need no lock. The lock is the kernel's
(`flock`), so it ends with the process however that ends; what the file says is only for people. A network file system
may have no such lock, or one that other hosts do not see: there it is on the operator to start one server only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import URL, make_url

from rangewatch_server.store.engine import DatabaseError

try:
    import fcntl
except ImportError:  # Windows: no flock, and so no check
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("rangewatch.server")

MOST_BYTES = 1_000  # of a lock file read: ours have about 60
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


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
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)  # the file stays: removing it would race with the next one's lock
        os.close(descriptor)


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
        found = msgspec.json.decode(os.pread(descriptor, MOST_BYTES, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return "another process"
    host = "".join(each for each in found.host[:100] if each.isprintable())
    return f"process {found.pid} on {host}"
