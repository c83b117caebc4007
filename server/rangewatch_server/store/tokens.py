"""Tokens, sessions and the audit, as they are stored; written by servers and by `rangewatch token` beside them.

In PostgreSQL they are tables of the database. With SQLite they are a file of their own, `FILE.access`: the database
has one writer, which is its only checkpointer (store/engine.py), and this has several, so it is small and no WAL. A
backup of the runs does not hold it. The file is made by the first that writes to it, readable by its owner only.

Tokens are stored as their SHA-256. A slow hash would protect secrets that can be guessed; these are 256 random bits,
which nobody guesses at any speed, and each request of each agent looks one up.

Also what of the audit is dropped when it is too long: never the records of one for the noise of another.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, delete, event, func, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.store import tables
from rangewatch_server.store.engine import first_line

MAX_AUDIT = 100_000  # records kept, 30 MB at most
CHECKED_EVERY = 256  # records between two looks whether there are too many: to count them takes milliseconds
DROPPED_BY = "rangewatch audit"  # no token is called so: a name has no spaces
LOCK = int.from_bytes(b"rw audit", "big")


def drop_oldest(connection: Connection) -> None:
    """Who does much loses what is old of their own, never others': noise must not hide what somebody else has done."""
    if connection.dialect.name == "postgresql":  # SQLite has one that writes at a time
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    who = tables.audit.c.who
    rows = connection.execute(select(who, func.count()).where(who != DROPPED_BY).group_by(who))
    counts = {row[0]: int(row[1]) for row in rows}
    share = fair_share(list(counts.values()), MAX_AUDIT - CHECKED_EVERY)
    for name in [name for name, count in counts.items() if count > share]:
        _drop_of(connection, name, counts[name] - share)


def fair_share(counts: Sequence[int], most: int) -> int:
    """How many each may keep so that all together keep at most `most`: what some do not need the others may have."""
    left = most
    for place, count in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if count > share:
            return share
        left -= count
    return most


def _drop_of(connection: Connection, who: str, number: int) -> None:
    """The oldest `number` records of `who`; one record says how many have gone so far, and of which time."""
    table, what = tables.audit, f"dropped the oldest records of {who}"
    reported = (table.c.who == DROPPED_BY) & (table.c.what == what)
    oldest = select(table.c.id, table.c.time_ns).where(table.c.who == who).order_by(table.c.id).limit(number)
    gone = connection.execute(oldest).all()
    before = connection.execute(select(table.c.detail).where(reported)).scalar()
    sum_up = msgspec.json.decode(before) if before else {"records": 0, "first_ns": gone[0].time_ns}
    sum_up |= {"records": sum_up["records"] + len(gone), "last_ns": gone[-1].time_ns}
    connection.execute(delete(table).where((table.c.who == who) & (table.c.id <= gone[-1].id)))
    connection.execute(delete(table).where(reported))
    row = {"time_ns": time.time_ns(), "who": DROPPED_BY, "client": "", "what": what, "status": 200}
    connection.execute(insert(table).values(row | {"detail": msgspec.json.encode(sum_up).decode()}))


SCHEMA = 1  # of the SQLite file, in its user_version
BUSY_MS = 5_000  # another process may hold the file this long: its transactions are a row or two
MAX_TOKENS = 1_000  # live ones: each server holds all in memory
MAX_SESSIONS = 10_000  # the oldest go first
TEXT = 500  # characters of one text of a record
UNDEFINED_TABLE = "42P01"


class NoTables(DatabaseError):
    """A PostgreSQL database in which no server of this version has made its tables yet."""


class Token(msgspec.Struct, frozen=True):
    """A token without the token. `roles` are `ingest`, `view`, `admin`."""

    id: int
    name: str
    digest: str
    roles: tuple[str, ...]
    created_ns: int
    revoked_ns: int | None


class Session(msgspec.Struct, frozen=True):
    """A browser that has logged in."""

    digest: str
    token_id: int | None
    proof: str
    expires_ns: int


class Stored(msgspec.Struct, frozen=True):
    """All that a server needs to know who somebody is."""

    tokens: tuple[Token, ...] = ()
    sessions: tuple[Session, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """One thing done with the role admin. `status` None: broken off, or going on."""

    id: int
    time_ns: int
    who: str
    client: str
    what: str
    detail: str
    status: int | None


class AccessStore:
    """The one way to these tables. Every method is one short transaction; raises `DatabaseError` in one line."""

    def __init__(self, url: URL) -> None:
        """Raises `DatabaseError` for a kind of database that is not ours."""
        name = url.get_backend_name()
        if name not in ("sqlite", "postgresql"):
            raise DatabaseError(f"cannot use {name}: give sqlite:///FILE or postgresql://USER@HOST:PORT/NAME")
        # By the file's own name: a server may be given it by a link, and `rangewatch token` by another.
        self.path = Path(f"{Path(url.database or '').resolve()}.access") if name == "sqlite" else None
        self.engine = _server(url) if self.path is None else _file(self.path)

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def read(self) -> Stored:
        """Tokens, revoked ones too, and sessions that have not expired. Raises `NoTables`, too."""
        with self._reading() as connection:
            if connection is None:
                return Stored()
            rows = connection.execute(select(tables.tokens).order_by(tables.tokens.c.id))
            sessions = tables.sessions
            live = connection.execute(select(sessions).where(sessions.c.expires_ns > time.time_ns()))
            return Stored(
                tuple(_token(row) for row in rows),
                tuple(Session(row.digest, row.token_id, row.proof, row.expires_ns) for row in live),
            )

    def create(self, name: str, digest: str, roles: Sequence[str]) -> None:
        """Store a token. Raises `DatabaseError` when the name is taken, or there are too many."""
        live = select(func.count()).where(tables.tokens.c.revoked_ns.is_(None))
        with self._writing() as connection:
            if connection.execute(live).scalar_one() >= MAX_TOKENS:
                raise DatabaseError(f"there are {MAX_TOKENS} tokens already: revoke some")
            row = {"name": name, "digest": digest, "roles": " ".join(roles), "created_ns": time.time_ns()}
            try:
                connection.execute(insert(tables.tokens).values(row))
            except IntegrityError:
                raise DatabaseError(
                    f"there is a token {name!r} already, or was: names are not used again, so that the audit is plain"
                ) from None

    def revoke(self, name: str) -> bool:
        """End a token and its sessions; False when there is no live one of that name."""
        tokens, sessions = tables.tokens, tables.sessions
        mine = (tokens.c.name == name) & tokens.c.revoked_ns.is_(None)
        with self._writing() as connection:
            token_id = connection.execute(select(tokens.c.id).where(mine)).scalar()
            if token_id is None:
                return False
            connection.execute(update(tokens).where(tokens.c.id == token_id).values(revoked_ns=time.time_ns()))
            connection.execute(delete(sessions).where(sessions.c.token_id == token_id))
            return True

    def open_session(self, session: Session) -> None:
        """Store one; those that have expired go, and of too many the oldest."""
        table = tables.sessions
        oldest = select(table.c.digest).order_by(table.c.created_ns.desc()).offset(MAX_SESSIONS - 1)
        now_ns = time.time_ns()
        with self._writing() as connection:
            connection.execute(delete(table).where(table.c.expires_ns <= now_ns))
            doomed = connection.execute(oldest).scalars().all()
            if doomed:
                connection.execute(delete(table).where(table.c.digest.in_(doomed)))
            connection.execute(insert(table).values(msgspec.structs.asdict(session) | {"created_ns": now_ns}))

    def close_session(self, digest: str) -> None:
        """Forget one."""
        with self._writing() as connection:
            connection.execute(delete(tables.sessions).where(tables.sessions.c.digest == digest))

    def begin_record(self, who: str, client: str, what: str) -> int:
        """A record of what is about to be done; its number."""
        table = tables.audit
        row = {"time_ns": time.time_ns(), "who": who, "client": client, "what": _storable(what)}
        with self._writing() as connection:
            number = int(connection.execute(insert(table).values(row).returning(table.c.id)).scalar_one())
            if number % CHECKED_EVERY == 0:
                drop_oldest(connection)
            return number

    def end_record(self, number: int, status: int | None, detail: str) -> None:
        """What became of it."""
        table = tables.audit
        with self._writing() as connection:
            values = {"status": status, "detail": _storable(detail)}
            connection.execute(update(table).where(table.c.id == number).values(values))

    def records(self, limit: int, before: int | None = None) -> list[Record]:
        """The newest first; with `before` those older than that one."""
        table = tables.audit
        query = select(table).order_by(table.c.id.desc()).limit(limit)
        with self._reading() as connection:
            if connection is None:
                return []
            rows = connection.execute(query if before is None else query.where(table.c.id < before))
            return [Record(*row) for row in rows]

    @contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        """None where nothing was ever written."""
        if self.path is not None and not _is_there(self.path):
            yield None
            return
        with self._shown(), self.engine.connect().execution_options(begin="BEGIN") as connection:
            if self.path is not None:
                _check_schema(self.path, connection)
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._shown():
            if self.path is not None:
                _create(self.path, self.engine)
            with self.engine.begin() as connection:
                yield connection

    @contextmanager
    def _shown(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            is_missing = getattr(getattr(error, "orig", None), "sqlstate", None) == UNDEFINED_TABLE
            kind = NoTables if is_missing else DatabaseError
            raise kind(f"cannot use {self.path or 'the tokens of the database'}: {first_line(error)}") from None


def _storable(text: str) -> str:
    return text.replace("\0", "\\0")[:TEXT]  # PostgreSQL stores no NUL, and a path may have one


def digest_of(secret: str) -> str:
    """What is stored of a token or a cookie: SHA-256, hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _token(row: Any) -> Token:
    return Token(row.id, row.name, row.digest, tuple(row.roles.split()), row.created_ns, row.revoked_ns)


def _server(url: URL) -> Engine:
    options = {"options": f"{url.query.get('options', '')} -c lock_timeout={BUSY_MS} -c statement_timeout={BUSY_MS}"}
    return create_engine(
        url, pool_size=1, max_overflow=1, pool_pre_ping=True, connect_args=options | {"connect_timeout": 5}
    )


def _file(path: Path) -> Engine:
    # No pool: the file is opened for each transaction, so that one that was put in its place is seen.
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
    event.listen(engine, "connect", _pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    # A writer takes its lock at once: two that read first and then write would end each other.
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN IMMEDIATE"))


def _pragmas(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in (f"busy_timeout={BUSY_MS}", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _is_there(path: Path) -> bool:
    """Whether it has tables: it is empty until the transaction that makes them."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DatabaseError(f"cannot open {path}: {error.strerror}") from None


def _create(path: Path, engine: Engine) -> None:
    """The file with its tables, where it is not there yet. Raises `DatabaseError` for one of a later version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with engine.begin() as connection:
        if _check_schema(path, connection) < SCHEMA:
            tables.access.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")


def _check_schema(path: Path, connection: Connection) -> int:
    schema = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if schema > SCHEMA:
        raise DatabaseError(f"{path} has schema {schema}, which is newer than this version of Rangewatch")
    return schema
