"""Runs of a backup added to a database, in short jobs, while ingest goes on.

A run gets new numbers, and shows when all of it is there: until then its row says `restoring`, and nobody sees it. What
was interrupted is deleted later. A run that is there by its name is left alone, or replaced in the transaction that
shows the new one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Table, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.maintenance.copies.backup_file import BackupFile, BadBackup
from rangewatch_server.maintenance.copies.backup_rows import RunRows
from rangewatch_server.maintenance.jobs import Jobs
from rangewatch_server.maintenance.retention.runs_delete import DELETING, RESTORING, mark_deleted, remove_rows
from rangewatch_server.store import run_metadata, tables
from rangewatch_server.store.names import identity, open_partitions

ROWS, BYTES = 200, 2 << 20  # in one job: some 20 ms
OnProgress = Callable[[str], None]
Row = dict[str, Any]
_run = tables.runs.c


class Restored(msgspec.Struct):
    """Names of the runs that were added (or replaced), and of those that were there."""

    added: list[str] = []
    skipped: list[str] = []


def restore(
    jobs: Jobs, engine: Engine, file: BackupFile, replace: bool, reported: OnProgress,
    changed: Callable[[int], None] = lambda _: None,
) -> Restored:  # fmt: skip
    """Add every whole run of the file. Raises `BadBackup`: runs before the bad one are there then, it is not.

    `changed` gets the number of each run that came, or went for one that came.
    """
    outcome = Restored()
    for row in file.rows(tables.runs, "WHERE deleted_ns IS NULL"):
        name = row["name"]
        if not replace and _is_there(engine, name):
            reported(f"{name}: is there already, skipped")
            outcome.skipped.append(name)
        else:
            is_added = _Run(jobs, file, row, reported, changed).copy(replace)
            (outcome.added if is_added else outcome.skipped).append(name)
    return outcome


def _is_there(engine: Engine, name: str) -> bool:
    with engine.connect() as connection:
        return connection.execute(select(_run.id).where(_run.identity == identity(name))).first() is not None


class _Shown(msgspec.Struct, frozen=True):
    """Whether the run has its name now; and the one that had it, to be removed."""

    is_shown: bool
    replaced: int | None = None


class _Run:
    """One run on its way. `streams` and `commands`: number in the file -> number here."""

    def __init__(
        self, jobs: Jobs, file: BackupFile, row: Row, reported: OnProgress, changed: Callable[[int], None]
    ) -> None:
        self.jobs, self.file, self.row, self.reported, self.changed = jobs, file, row, reported, changed
        self.checks = RunRows(row)
        self.old_id: int = row["id"]
        self.streams: dict[int, int] = {}
        self.commands: dict[int, int] = {}
        self.id = 0

    def copy(self, replace: bool) -> bool:
        """Whether it was added; not when another came by its name meanwhile."""
        self.id = self.jobs(self._begin)
        try:
            self._rows()
            shown = self.jobs(lambda connection: self._show(connection, replace), forgets=True)
        except (BadBackup, SQLAlchemyError):
            with contextlib.suppress(SQLAlchemyError):  # what stays now is removed before the next plan is made
                self._remove()
            raise
        if not shown.is_shown:
            self.reported(f"{self.row['name']}: came meanwhile, skipped")
            self._remove()
            return False
        self.reported(f"{self.row['name']}: restored")
        self.changed(self.id)
        if shown.replaced is not None:
            self.changed(shown.replaced)
            remove_rows(self.jobs, shown.replaced)
        return True

    def _rows(self) -> None:
        for table in (tables.tensors, tables.series, tables.catalogues):  # streams name tensors
            self._plain(table, "WHERE run_id = ?")
        self._numbered(tables.streams, self.streams)
        for table in tables.PARTITIONED:
            self._plain(table, "WHERE run_id = ?")
        self._plain(tables.events, "WHERE stream_id IN (SELECT id FROM streams WHERE run_id = ?)")
        self._numbered(tables.commands, self.commands)
        self._plain(tables.command_ranks, "WHERE command_id IN (SELECT id FROM commands WHERE run_id = ?)")

    def _remove(self) -> None:
        if self.jobs(self._give_up):
            remove_rows(self.jobs, self.id)

    def _begin(self, connection: Connection) -> int:
        now_ns = time.time_ns()
        values = {"identity": f"{RESTORING}{now_ns}", "name": self.row["name"], "created_ns": self.row["created_ns"]}
        values |= run_metadata.columns_of(self.checks.about) | {"deleted_ns": now_ns}
        query = insert(tables.runs).values(values).returning(_run.id)
        run_id = int(connection.execute(query).scalar_one())
        open_partitions(connection, run_id)
        return run_id

    def _numbered(self, table: Table, numbers: dict[int, int]) -> None:
        for rows in _parts(self.file.rows(table, "WHERE run_id = ?", (self.old_id,))):
            numbers |= self.jobs(lambda connection, rows=rows: self._insert_numbered(connection, table, rows))  # type: ignore[misc]

    def _insert_numbered(self, connection: Connection, table: Table, rows: list[Row]) -> dict[int, int]:
        """One by one, in the order of their old numbers: a newer process has the higher one."""
        new_ids: dict[int, int] = {}
        for row in rows:
            self.checks.check(table.name, row)
            values = {name: value for name, value in self._moved(row).items() if name != "id"}
            statement = insert(table).values(values).returning(table.c.id)
            new_ids[row["id"]] = int(connection.execute(statement).scalar_one())
        return new_ids

    def _plain(self, table: Table, where: str) -> None:
        copied = 0
        for rows in _parts(self.file.rows(table, where, (self.old_id,))):
            for row in rows:
                self.checks.check(table.name, row)
            moved = [self._moved(row) for row in rows]
            if table in (tables.events, tables.catalogues):
                moved = [{name: value for name, value in row.items() if name != "id"} for row in moved]
            self.jobs(lambda connection, moved=moved: connection.execute(insert(table), moved) and None)  # type: ignore[misc]
            copied += len(rows)
        self.reported(f"{self.row['name']}: {copied} {table.name}")

    def _moved(self, row: Row) -> Row:
        """The same row under the numbers that it has here."""
        moved = dict(row)
        if "run_id" in moved:
            moved["run_id"] = self.id
        for name, numbers in (("stream_id", self.streams), ("command_id", self.commands)):
            if name in moved:
                if moved[name] not in numbers:
                    raise BadBackup(f"run {self.row['name'][:80]!r}: {name} {moved[name]} is not in the backup")
                moved[name] = numbers[moved[name]]
        return moved

    def _show(self, connection: Connection, replace: bool) -> _Shown:
        """Give the run its name, unless another has it that is not to be replaced. Raises `BadBackup`."""
        known = identity(self.row["name"])
        old: int | None = connection.execute(select(_run.id).where(_run.identity == known)).scalar()
        if old is not None and not replace:
            return _Shown(False)
        if old is not None:
            mark_deleted(connection, old)
        coming = (_run.id == self.id) & _run.identity.startswith(RESTORING)
        shown = update(tables.runs).where(coming).values(identity=known, deleted_ns=None)
        if connection.execute(shown).rowcount != 1:
            raise BadBackup(f"run {self.row['name'][:80]!r} took too long and was given up; try again")
        return _Shown(True, old)

    def _give_up(self, connection: Connection) -> bool:
        """Whether it was still coming: a commit may be done, and its answer lost."""
        coming = (_run.id == self.id) & _run.identity.startswith(RESTORING)
        return (
            connection.execute(update(tables.runs).where(coming).values(identity=f"{DELETING}{self.id}")).rowcount > 0
        )


def _parts(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in groups of at most `ROWS`, and of some `BYTES`."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        if len(part) >= ROWS or size >= BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
