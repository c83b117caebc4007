"""`backup`, `restore` and `prune` on a database that no server has open; the agent's commands call these with `--db`.

Whatever writes holds the SQLite file against a server meanwhile; to read needs no hold, since a reader sees one moment.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic.migration import MigrationContext
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.settings import Settings
from rangewatch_server.maintenance.copies.backup import check_room, snapshot
from rangewatch_server.maintenance.copies.backup_file import BadBackup, open_backup
from rangewatch_server.maintenance.copies.restore import restore as restore_runs
from rangewatch_server.maintenance.jobs import DirectJobs
from rangewatch_server.maintenance.retention.plan import held_bytes, planned
from rangewatch_server.maintenance.retention.policy import GB, Policy
from rangewatch_server.maintenance.retention.prune import apply, finish_deletions, table_of
from rangewatch_server.maintenance.retention.space import vacuum_whole
from rangewatch_server.store.condition import newest_schema
from rangewatch_server.store.engine import Engines, hold, open_database

OnProgress = Callable[[str], None]


class Failed(OSError):
    """In one line for a person: the commands show an `OSError` as it is."""


def backup(db: str, path: Path, target: Path, reported: OnProgress) -> None:
    """A snapshot of the database in `path`, which will be `target`. Raises `Failed`."""
    with _shown():
        url = _url(db)
        # It only reads, and migrates nothing: a server may have it open.
        is_file = url.get_backend_name() == "sqlite"
        if is_file and target.exists() and target.samefile(str(url.database)):
            raise Failed("the backup would replace the database itself")
        engine = create_engine(url, isolation_level=None if is_file else "REPEATABLE READ")
        try:
            needed = Path(str(url.database)).stat().st_size if is_file else held_bytes(engine)
            check_room(path.parent, needed)
            snapshot(engine, url.database or "", path, reported)
        finally:
            engine.dispose()


def restore(db: str, file: Path, replace: bool, reported: OnProgress) -> None:
    """The runs of `file` added to the database. Raises `Failed`."""
    with _shown(), tempfile.TemporaryDirectory(prefix="rangewatch-") as folder:
        check_room(Path(folder), file.stat().st_size)
        copy = Path(shutil.copy(file, Path(folder) / "restored.db"))  # an older one is migrated, and not in its place
        copy.chmod(0o600)
        with open_backup(copy) as backup_file, _held(_url(db)) as engines:
            jobs = DirectJobs(engines.writer)
            restored = restore_runs(jobs, engines.reader, backup_file, replace, reported)
            reported(f"{len(restored.added)} runs restored, {len(restored.skipped)} were there already")


def prune(db: str, limits: Mapping[str, float], dry_run: bool, vacuum: bool, reported: OnProgress) -> list[str]:
    """The plan as lines; done, too, unless it is a `dry_run`, which only reads. Raises `Failed`."""
    keep_gb = limits.get("keep_gb")
    policy = Policy(limits.get("keep_days"), None if keep_gb is None else int(keep_gb * GB))
    with _shown():
        url = _url(db)
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
            raise Failed(f"there is no database {url.database}")
        if not dry_run:
            return _prune(url, policy, vacuum, reported)
        with _read_only(url) as engine:
            return table_of(planned(engine, policy))


def _prune(url: URL, policy: Policy, vacuum: bool, reported: OnProgress) -> list[str]:
    with _held(url) as engines:
        jobs = DirectJobs(engines.writer)
        finish_deletions(jobs, engines.reader)
        actions = planned(engines.reader, policy)
        apply(jobs, engines.writer, actions, reported)
        if vacuum and url.get_backend_name() == "sqlite":
            check_room(Path(str(url.database)).parent, held_bytes(engines.reader))
            engines.reader.dispose()
            vacuum_whole(engines.writer)
        return table_of(actions)


@contextmanager
def _read_only(url: URL) -> Iterator[Engine]:
    """To look only, beside a server if there is one; nothing is migrated. Raises `Failed` for another schema."""
    if url.get_backend_name() == "sqlite":
        path = f"file:{quote(str(url.database))}?mode=ro"
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(path, uri=True, isolation_level=None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))  # one moment a run
    else:
        engine = create_engine(url, isolation_level="REPEATABLE READ")
    try:
        _check_schema(engine)
        yield engine
    finally:
        engine.dispose()


def _check_schema(engine: Engine) -> None:
    with engine.connect() as connection:
        schema, wanted = MigrationContext.configure(connection).get_current_revision(), newest_schema()
    if schema is None:
        raise Failed("this is no database of Rangewatch")
    if schema != wanted:
        raise Failed(
            f"the database has schema {schema}, this version of Rangewatch reads {wanted}; a server that starts on it, "
            "or prune without --dry-run, migrates an older one"
        )


@contextmanager
def _held(url: URL) -> Iterator[Engines]:
    """The database open, and a SQLite file held: a server has its own memory of what is in it."""
    with hold(url), _opened(url) as engines:
        yield engines


@contextmanager
def _opened(url: URL) -> Iterator[Engines]:
    engines = open_database(url)
    try:
        yield engines
    finally:
        engines.dispose()


@contextmanager
def _shown() -> Iterator[None]:
    try:
        yield
    except (DatabaseError, BadBackup) as error:
        raise Failed(str(error)) from None
    except SQLAlchemyError as error:
        reason: Any = getattr(error, "orig", None) or error
        raise Failed(f"the database failed: {str(reason).splitlines()[0]}") from None


def _url(db: str) -> URL:
    return Settings(db=db).database_url
