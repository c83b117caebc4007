"""Space given back after rows have gone, while ingest goes on.

SQLite: pages are moved and cut off in slices, where the file was made with `auto_vacuum=INCREMENTAL`; an older file
keeps its size and reuses the pages. PostgreSQL: VACUUM of the partitions touched, never FULL: it locks everyone out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection, Engine

from rangewatch_server.maintenance.jobs import Deadline, Jobs
from rangewatch_server.store import tables

PAGES = 64  # moved in one statement: 256 KiB
INCREMENTAL = 2


def give_back(jobs: Jobs, engine: Engine, runs: Iterable[int], reported: Callable[[str], None]) -> None:
    """Make files smaller where that can be done beside ingest."""
    if engine.dialect.name == "postgresql":
        _vacuum(engine, runs)
        reported("vacuumed: PostgreSQL reuses the space, and gives back what is at the end of its files")
    elif jobs(_auto_vacuum) != INCREMENTAL:
        reported(
            "this file was made by an older version: its free pages are reused, but it does not shrink; stop the "
            "server and run `rangewatch prune --vacuum --db FILE` once"
        )
    else:
        before = jobs(_free_pages)
        while jobs(_cut_some):
            pass
        reported(f"{before - jobs(_free_pages)} pages given back")


def vacuum_whole(engine: Engine) -> None:
    """SQLite, with nobody else in the file: rewrite it, so that it is small and can shrink by slices from then on."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        raw = connection.connection.cursor()
        raw.execute("PRAGMA auto_vacuum=INCREMENTAL")
        raw.execute("VACUUM")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _auto_vacuum(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one())


def _free_pages(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())


def _cut_some(connection: Connection) -> bool:
    """Whether there are free pages left; False too when none could be cut off."""
    deadline, before = Deadline(), _free_pages(connection)
    free = before
    while free and not deadline.is_over:
        # By a cursor of the driver: it moves one page a step, and only fetching takes all the steps.
        connection.connection.cursor().execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
        free = _free_pages(connection)
    return 0 < free < before


def _vacuum(engine: Engine, runs: Iterable[int]) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in tables.PARTITIONED:
            for run_id in runs:
                own = f"{table.name}_run_{run_id:d}"
                if connection.exec_driver_sql(f"SELECT to_regclass('{own}')").scalar() is not None:
                    connection.exec_driver_sql(f"VACUUM {own}")
