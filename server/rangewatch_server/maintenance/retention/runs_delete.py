"""A run deleted: at once nobody sees it and a new run may have its name; its rows go a few at a time.

The row in `runs` stays, without its name: SQLite gives a number out again when the highest is gone, and what readers
keep in memory, links and agents' answers go by number. For the same reason the newest stream and command stay until
there is a newer one. What was interrupted goes on at the next start: the row's identity says `deleting`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Table, and_, column, delete, func, select, update
from sqlalchemy.exc import OperationalError

from rangewatch_server.maintenance.jobs import Deadline, Jobs
from rangewatch_server.store import tables

SLICE = 16  # rows in one statement: tiles have up to some 100 KiB
LOCK_S = 1  # PostgreSQL: how long a partition's lock is waited for; ingest waits behind it
TRIES = 60
GIVE_UP_NS = 3_600 * 10**9  # PostgreSQL: another server on the same database may be restoring now
DELETING, DELETED, RESTORING = "deleting:", "deleted:", "restoring:"
_run, _stream, _command = tables.runs.c, tables.streams.c, tables.commands.c


def mark_deleted(connection: Connection, run_id: int) -> str | None:
    """Take the run from sight and from its name; the name, or None when there is no such run.

    A job that does this must be one that `forgets`: the writer knows the run by its name.
    """
    name: str | None = connection.execute(
        select(_run.name).where(_run.id == run_id, _run.deleted_ns.is_(None))
    ).scalar()
    if name is not None:
        values = {"identity": f"{DELETING}{run_id}", "deleted_ns": time.time_ns()}
        connection.execute(update(tables.runs).where(_run.id == run_id).values(values))
    return name


def give_up_restores(connection: Connection) -> None:
    """Runs whose restore was interrupted are deleted: those that began to come long ago and are not there yet.

    The caller knows that this process restores nothing now. In SQLite no other one does, as the file is held.
    """
    coming = _run.identity.startswith(RESTORING)
    if connection.dialect.name != "sqlite":
        coming &= _run.deleted_ns < time.time_ns() - GIVE_UP_NS
    connection.execute(update(tables.runs).where(coming).values({"identity": DELETING + _run.identity}))


def unfinished(engine: Engine) -> list[int]:
    """Runs that were deleted and still have rows."""
    with engine.connect() as connection:
        return list(connection.execute(select(_run.id).where(_run.identity.startswith(DELETING))).scalars())


def remove_rows(jobs: Jobs, run_id: int) -> None:
    """Delete all rows of a deleted run, then note that it is done."""
    for table in tables.PARTITIONED:
        _drop_partition(jobs, table, run_id)
    for table, which in _rows(run_id):
        while jobs(partial(_delete_some, table=table, which=which)):
            pass
    jobs(lambda connection: _done(connection, run_id))


def _rows(run_id: int) -> Iterator[tuple[Table, Any]]:
    """Tables with the run's rows in them; those that others point to come after these."""
    mine = select(_stream.id).where(_stream.run_id == run_id)
    asked = select(_command.id).where(_command.run_id == run_id)
    yield from ((table, table.c.run_id == run_id) for table in tables.PARTITIONED)
    yield tables.events, tables.events.c.stream_id.in_(mine)
    reported = select(tables.alerts.c.id).where(tables.alerts.c.run_id == run_id)
    yield tables.deliveries, tables.deliveries.c.alert_id.in_(reported)
    of_run = (tables.alerts, tables.silences, tables.thresholds, tables.examined)
    yield from ((table, table.c.run_id == run_id) for table in of_run)
    yield tables.command_ranks, tables.command_ranks.c.command_id.in_(asked)
    yield tables.commands, and_(_command.run_id == run_id, _command.id < _newest(tables.commands))
    yield from ((table, table.c.run_id == run_id) for table in (tables.tensors, tables.series, tables.catalogues))
    yield tables.streams, and_(_stream.run_id == run_id, _stream.id < _newest(tables.streams))


def _newest(table: Table) -> Any:
    return select(func.max(table.c.id)).scalar_subquery()


def _delete_some(connection: Connection, table: Table, which: Any) -> bool:
    """Whether there may be more."""
    deadline = Deadline()
    # SQLite's own row number, or where the row lies: both are found without an index of their own.
    row: Any = column("rowid") if connection.dialect.name == "sqlite" else column("ctid")
    statement = delete(table).where(which, row.in_(select(row).select_from(table).where(which).limit(SLICE)))
    while not deadline.is_over:
        if connection.execute(statement).rowcount < SLICE:
            return False
    return True


def _drop_partition(jobs: Jobs, table: Table, run_id: int) -> None:
    """PostgreSQL: the run's rows go with their partition. A reader's lock is waited for, but never long at a time."""
    for tries_left in reversed(range(TRIES)):
        try:
            jobs(lambda connection: _drop(connection, table.name, f"{table.name}_run_{run_id:d}"))
            return
        except OperationalError:
            if not tries_left:
                raise
            time.sleep(LOCK_S)


def _drop(connection: Connection, parent: str, own: str) -> None:
    if connection.dialect.name != "postgresql":
        return
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
    if connection.exec_driver_sql(f"SELECT to_regclass('{own}')").scalar() is None:
        return
    connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {own}")
    connection.exec_driver_sql(f"DROP TABLE {own}")


def _done(connection: Connection, run_id: int) -> None:
    values = {"identity": f"{DELETED}{run_id}", "name": ""}
    connection.execute(update(tables.runs).where(_run.id == run_id).values(values))
