"""Runs deleted, beside agents that still send; space given back; the commands `prune` and `delete`."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select

from rangewatch_server.maintenance.retention.prune import finish_deletions
from rangewatch_server.maintenance.retention.runs_delete import mark_deleted, unfinished
from rangewatch_server.maintenance.retention.space import give_back
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.store import tables
from tests import forked
from tests.server.maintenance.test_retention import RESUMED, SIZE, STEPS, TENSORS, figure, fill, jobs_of, truth
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

__all__ = ["truth"]  # a fixture


BOTH = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True
)


@BOTH
def test_a_deleted_run_is_gone_at_once_and_its_numbers_stay_its_own(store: Store, truth) -> None:
    fill(store, truth)
    known = catalogue(TENSORS)
    store.send(opening(known, run="other"))
    jobs = jobs_of(store)
    jobs(lambda connection: mark_deleted(connection, 1), forgets=True)
    with store.queries.read() as reader:
        assert reader.run_ids() == [2] and reader.run(1) is None
    store.send(opening(known, incarnation="b"))  # the name is free, though the rows are still there
    store.send(batch(known, 0, range(100), incarnation="b"))
    with store.queries.read() as reader:
        assert reader.run_ids() == [3, 2]
    assert unfinished(store.engines.reader) == [1]
    assert finish_deletions(jobs, store.engines.reader) == [1]
    assert unfinished(store.engines.reader) == []
    with store.engines.reader.connect() as connection:
        for table in (tables.tiles, tables.batches, tables.tensors, tables.catalogues, tables.series, tables.streams):
            query = select(func.count()).select_from(table).where(table.c.run_id == 1)
            assert connection.execute(query).scalar() == 0, table.name
    with store.queries.read() as reader:
        assert reader.run(3).last_step == 99


@BOTH
def test_the_newest_runs_numbers_are_not_given_out_again(store: Store, truth: dict[str, np.ndarray]) -> None:
    fill(store, truth)
    known = catalogue(TENSORS)
    with store.engines.reader.connect() as connection:
        newest = connection.execute(select(func.max(tables.streams.c.id))).scalar_one()
    figure(store, "layers", RESUMED, STEPS)  # its tiles are in the readers' cache now
    delete_run(store)
    store.send(opening(known, incarnation="b"))
    store.send(batch(known, 0, range(1_000), incarnation="b"))
    with store.queries.read() as reader:
        assert reader.run_ids() == [2]
        stream = reader.run(2).ranks[0].row
        assert stream.id > newest
        assert (reader.run(2).slice(RANGES, [0], 0, 64, 128, ["amax"]).columns["amax"] == 1.0).all()


def test_a_sqlite_file_shrinks_while_messages_come(tmp_path: Path, open_store: Callable[[str], Store]) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    known = catalogue(40)
    random = np.random.default_rng(1)
    store.send(opening(known))
    for sequence, low in enumerate(range(0, 4_000, SIZE)):
        store.send(batch(known, sequence, range(low, low + SIZE), {"amax": random.random((40, SIZE))}))
    store.send(opening(known, run="other"))
    jobs = jobs_of(store)
    checkpoint(store)
    size = (tmp_path / "a.db").stat().st_size
    delete_run(store)
    reported: list[str] = []
    give_back(jobs, store.engines.writer, [1], reported.append)
    assert store.send(batch(known, 0, range(100), run="other")).contiguous == 0
    checkpoint(store)
    assert (tmp_path / "a.db").stat().st_size < size / 4
    assert "pages given back" in reported[0]


def delete_run(store: Store) -> None:
    """The first run with all its rows."""
    jobs = jobs_of(store)
    jobs(lambda connection: mark_deleted(connection, 1), forgets=True)
    assert finish_deletions(jobs, store.engines.reader) == [1]


def checkpoint(store: Store) -> None:
    """The log into the file."""
    with store.engines.writer.connect() as connection:
        connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_a_file_of_an_older_version_says_that_it_does_not_shrink(tmp_path: Path, open_store: Callable) -> None:
    with sqlite3.connect(tmp_path / "a.db") as old:
        old.execute("CREATE TABLE made_without_auto_vacuum (x)")
        old.execute("DROP TABLE made_without_auto_vacuum")
    old.close()
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    reported: list[str] = []
    give_back(jobs_of(store), store.engines.writer, [], reported.append)
    assert "does not shrink" in reported[0]


class Sender:
    """What an agent does: sends in order, opens when it is asked to, and keeps what was not acknowledged."""

    def __init__(self, run: Run, incarnation: str = "a") -> None:
        self.run, self.known, self.incarnation = run, catalogue(3), incarnation
        self.sequence = 0

    def send(self) -> dict[str, Any]:
        low = self.sequence * 10
        message = batch(self.known, self.sequence, range(low, low + 10), incarnation=self.incarnation)
        message = msgspec.structs.replace(message, settled=self.sequence)  # those before have arrived
        answer = self.run.post(message)
        if answer.status_code == 409:
            assert answer.json()["code"] == "unknown_run"
            assert self.run.post(opening(self.known, incarnation=self.incarnation)).status_code == 202
            answer = self.run.post(message)
        assert answer.status_code == 202, answer.text
        self.sequence += 1
        return answer.json()


def test_an_agent_that_still_sends_opens_the_run_anew(run: Run) -> None:
    sender = Sender(run)
    for _ in range(20):
        sender.send()
    answer = run.ask(method="DELETE")
    assert (answer.status_code, answer.json()["name"]) == (200, run.name)
    assert run.name not in [each["name"] for each in run.server.get("/api/v1/runs")["runs"]]
    assert run.ask().status_code == 404
    assert run.ask(method="DELETE").status_code == 404
    for _ in range(20):
        assert sender.send()["contiguous"] == sender.sequence - 1
    anew = Run(run.server, run.name)
    assert anew.id > run.id
    found = anew.get()
    assert [found[name] for name in ("name", "first_step", "last_step")] == [run.name, 200, 399]
    for step in range(200, 400, 30):
        assert [each["call_count"] for each in anew.get(f"/step?step={step}")["frames"]] == [1] * 3


def test_a_server_killed_in_the_middle_of_a_deletion_goes_on(start_server: Callable[..., Server], tmp_path) -> None:
    db = str(tmp_path / "a.db")
    store = Store(f"sqlite:///{db}")
    known = catalogue(3)
    store.send(opening(known))
    for sequence, low in enumerate(range(0, 4_000, SIZE)):
        store.send(batch(known, sequence, range(low, low + SIZE)))
    jobs_of(store)(lambda connection: mark_deleted(connection, 1), forgets=True)  # and no more: killed here
    store.close()
    server = start_server(db=db)
    assert server.get("/api/v1/runs")["runs"] == []
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as reader:
        while reader.execute("SELECT identity FROM runs").fetchone() != ("deleted:1",):
            time.sleep(0.02)  # the test's own time limit ends it
        assert reader.execute("SELECT count(*) FROM tiles").fetchone() == (0,)
    reader.close()


def run_command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", *arguments, timeout=60, typed=stdin)


def test_the_commands_delete_and_prune(server: Server) -> None:
    known = catalogue(3)
    server.post(opening(known))
    for sequence, low in enumerate(range(0, 6_000, SIZE)):
        assert server.post(batch(known, sequence, range(low, low + SIZE))).status_code == 202
    shown = run_command("prune", "--url", server.url, "--keep-gb", "1e-6", "--dry-run")
    assert shown.returncode == 0 and "detail before step" in shown.stdout and "total" in shown.stdout, shown
    done = run_command("prune", "--url", server.url, "--keep-gb", "1e-6")
    assert done.returncode == 0 and "tiles" in done.stderr, done
    meta = server.get("/api/v1/runs/1/figures/layers?start=1000&stop=1100")["meta"]
    assert meta["steps_per_column"] >= 8 and "thinned" in meta
    assert run_command("delete", "run", "--url", server.url, stdin="no\n").returncode == 1
    assert len(server.get("/api/v1/runs")["runs"]) == 1
    gone = run_command("delete", "run", "--url", server.url, stdin="yes\n")
    assert gone.returncode == 0 and server.get("/api/v1/runs")["runs"] == [], gone
    assert run_command("delete", "run", "--url", server.url, "--yes").returncode == 2
