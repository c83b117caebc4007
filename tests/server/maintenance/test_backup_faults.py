"""Backups when something is wrong: clients that stop, full disks, failed restores, rows that contradict each other."""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, make_url, select
from sqlalchemy.exc import OperationalError
from starlette.requests import Request

from rangewatch import wire
from rangewatch_server.core.errors import ApiError, DatabaseError
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.ingest import announce
from rangewatch_server.maintenance.copies.backup import snapshot
from rangewatch_server.maintenance.copies.backup_file import open_backup
from rangewatch_server.maintenance.copies.restore import Restored, restore
from rangewatch_server.maintenance.jobs import Job, QueuedJobs
from rangewatch_server.maintenance.retention.prune import finish_deletions
from rangewatch_server.maintenance.retention.runs_delete import RESTORING
from rangewatch_server.routes import maintenance
from rangewatch_server.store import tables, tiles
from tests.server.maintenance.test_backup import BOTH, good, kept, last_steps, other, put, refused, send
from tests.server.opened_store import Store
from tests.server.own_loop import in_own_loop
from tests.server.process import Server
from tests.server.records import catalogue, opening

__all__ = ["good", "kept", "other"]  # fixtures

ROOT = Path(__file__).parents[3]
STEPS = 750


@pytest.fixture
def store(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(sqlite_url)


def edit(path: Path, script: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(f"PRAGMA foreign_keys=OFF; {script}")
    connection.close()


HOSTILE = {
    "worst tensor": "UPDATE streams SET bad_step = 1, bad_is_nan = 1, bad_tensor = 100000",
    "least tensor": "UPDATE streams SET least_tensor = -1",
    "no tensor": "UPDATE streams SET least_tensor = NULL",
    "least bits": "UPDATE streams SET least_bits = 9e999",
    "first after last": "UPDATE streams SET first_step = last_step + 1",
    "thin step": "UPDATE streams SET thin_step = -512",
    "started": "UPDATE streams SET started_ns = -1",
    "last seen": "UPDATE streams SET last_seen_ns = -1",
}


def test_streams_that_contradict_themselves_are_refused(kept: Path, tmp_path: Path, other: Store) -> None:
    for kind, script in HOSTILE.items():
        path = Path(shutil.copy(kept, tmp_path / f"{kind}.db"))
        edit(path, script)
        assert "streams" in refused(other, path), kind


def without_amax(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in columns.items() if name != "amax"}


TILES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "no columns": ("ranges", lambda columns: {}),
    "no amax": ("ranges", without_amax),
    "no bits": ("summary", lambda columns: {"observed": columns["observed"]}),
    "NaN calls": ("ranges", lambda columns: columns | {"call_count": columns["call_count"] * np.nan}),
    "negative NaNs": ("ranges", lambda columns: columns | {"nan_count": columns["nan_count"] - 1.0}),
    "infinite amax": ("ranges", lambda columns: columns | {"amax": columns["amax"] + np.inf}),
    "NaN bits": ("summary", lambda columns: columns | {"bits": columns["bits"] * np.nan}),
    "NaN values": ("series", lambda columns: columns | {"count": columns["count"] * np.nan}),
}


def test_tiles_of_wrong_columns_are_refused(kept: Path, tmp_path: Path, other: Store) -> None:
    for kind, (part, spoilt) in TILES.items():
        path = Path(shutil.copy(kept, tmp_path / f"{kind}.db"))
        with sqlite3.connect(path) as connection:
            find = "SELECT payload FROM tiles WHERE part = ? AND tile = 2"
            rows, columns = tiles.decode(connection.execute(find, (part,)).fetchone()[0])
            bad = tiles.encode(rows, spoilt(columns))
            connection.execute("UPDATE tiles SET payload = ? WHERE part = ? AND tile = 2", (bad, part))
        connection.close()
        assert "tiles" in refused(other, path), kind


def test_an_analysed_backup_is_taken(good: Path, store: Store) -> None:
    edit(good, "ANALYZE")
    assert put(store, good).added == ["run"]


def with_jobs(store: Store, path: Path, before: Callable[[int], None], reported: list[str] | None = None) -> Restored:
    """Restore; `before` gets the number of each job."""
    real, count = QueuedJobs(store.writer), [0]

    def jobs(job: Job[Any], *, forgets: bool = False) -> Any:
        count[0] += 1
        before(count[0])
        return real(job, forgets=forgets)

    with open_backup(path) as file:
        lines = [] if reported is None else reported
        return restore(jobs, store.engines.reader, file, False, lines.append)  # type: ignore[arg-type]


def identities(store: Store) -> list[str]:
    with store.engines.reader.connect() as connection:
        assert connection.execute(select(tables.tiles.c.tile)).first() is None
        return list(connection.execute(select(tables.runs.c.identity)).scalars())


def test_a_restore_that_the_database_fails_leaves_nothing(good: Path, store: Store) -> None:
    def fail(number: int) -> None:
        if number == 6:
            raise OperationalError("INSERT", {}, Exception("database is locked"))

    with pytest.raises(OperationalError):
        with_jobs(store, good, fail)
    assert identities(store) == ["deleted:1"]


def test_a_restored_run_stays_when_only_the_answer_of_its_commit_is_lost(good: Path, store: Store) -> None:
    real = QueuedJobs(store.writer)

    def jobs(job: Job[Any], *, forgets: bool = False) -> Any:
        result = real(job, forgets=forgets)
        if forgets:  # the one that shows it
            raise OperationalError("COMMIT", {}, Exception("the connection was closed"))
        return result

    with open_backup(good) as file, pytest.raises(OperationalError):
        restore(jobs, store.engines.reader, file, False, lambda _: None)  # type: ignore[arg-type]
    assert last_steps(store) == {"run": STEPS - 1}
    assert finish_deletions(real, store.engines.reader) == [] and last_steps(store) == {"run": STEPS - 1}


def test_an_interrupted_restore_is_given_up_at_the_next_start(
    good: Path, tmp_path: Path, open_store: Callable[[str], Store]
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/new.db")

    def die(number: int) -> None:
        if number == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_jobs(store, good, die)
    with store.engines.reader.connect() as connection:
        assert connection.execute(select(tables.runs.c.identity)).scalar_one().startswith(RESTORING)
    assert finish_deletions(QueuedJobs(store.writer), store.engines.reader) == [1]
    assert identities(store) == ["deleted:1"]


def test_a_name_that_is_taken_meanwhile_is_skipped_and_said_so(good: Path, store: Store) -> None:
    reported: list[str] = []

    def come(number: int) -> None:
        if number == 3:
            store.send(opening(catalogue(1), "run", incarnation="z"))

    found = with_jobs(store, good, come, reported)
    assert (found.added, found.skipped) == ([], ["run"])
    assert reported[-1] == "run: came meanwhile, skipped" and "run: restored" not in reported
    assert last_steps(store) == {"run": None} and "deleted:1" in identities(store)


def test_pages_are_told_of_a_restored_run(good: Path, store: Store) -> None:
    changed: list[int] = []
    with open_backup(good) as file:
        restore(QueuedJobs(store.writer), store.engines.reader, file, False, lambda _: None, changed.append)
        restore(QueuedJobs(store.writer), store.engines.reader, file, True, lambda _: None, changed.append)
    assert changed == [1, 2, 1]


@BOTH
def test_a_full_disk_is_said_in_one_line(database_url: str, open_store: Callable[[str], Store], tmp_path: Path) -> None:
    store = open_store(database_url)
    send(store, "run", 0, 1)
    with store.engines.writer.begin() as connection:
        values = {"run_id": 1, "digest": "x", "body": np.random.default_rng(0).bytes(4 << 20), "ordinals": b""}
        connection.execute(insert(tables.catalogues).values(values))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))  # writing past it fails, as on a full disk
    try:
        with pytest.raises(DatabaseError, match="cannot write the backup: ") as raised:
            snapshot(store.engines.reader, make_url(database_url).database or "", tmp_path / "b.db", lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "INSERT" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_copy_from_postgresql_needs_its_room_once(
    postgres_url: str, open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    store = open_store(postgres_url)
    send(store, "run", 0, 3)
    seen: list[set[str]] = []
    folder = tmp_path / "out"
    folder.mkdir()
    snapshot(store.engines.reader, "", folder / "b.db", lambda _: seen.append({each.name for each in folder.iterdir()}))
    assert seen and all(each <= {"b.db", "b.db-journal"} for each in seen)


@pytest.fixture
def large(start_server: Callable[..., Server], tmp_path: Path) -> Server:
    """A server whose backup does not fit into the buffers of a connection."""
    db = tmp_path / "large.db"
    server = start_server(db=str(db))
    assert server.post(opening(catalogue(1))).status_code == 202
    with sqlite3.connect(db) as connection:
        body = np.random.default_rng(0).bytes(24 << 20)
        connection.execute("INSERT INTO catalogues (run_id, digest, body, ordinals) VALUES (1, 'x', ?, x'')", (body,))
    connection.close()
    return server


def copies(tmp_path: Path) -> list[str]:
    return [each.name for each in tmp_path.iterdir() if each.name.startswith("rangewatch-")]


def test_one_copy_is_on_the_disk_however_slowly_it_is_taken(large: Server, tmp_path: Path) -> None:
    with httpx.stream("GET", f"{large.url}/api/v1/backup", timeout=30) as idle:
        assert idle.status_code == 200
        refused = large.client.get("/api/v1/backup")
        assert (refused.status_code, refused.json()["code"]) == (429, "busy")
        assert len(copies(tmp_path)) == 1
        assert large.client.get("/api/v1/runs").status_code == 200
    while (answer := large.client.get("/api/v1/backup")).status_code == 429:
        pass  # until the server sees that the client has gone; the test's own time limit ends it
    assert answer.status_code == 200 and answer.content.startswith(b"SQLite format 3")
    while copies(tmp_path):
        large.client.get("/healthz")


def test_a_client_that_takes_nothing_loses_its_copy(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(maintenance, "STALLED_S", 0.05)
    store = Store(sqlite_url)
    store.close()

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def send_it() -> None:
        maintenance._copies.take()
        folder = maintenance._folder(make_url(sqlite_url))
        (Path(folder.name) / "rangewatch-backup.db").write_bytes(b"x" * 1_000)
        scope = {"type": "http", "method": "GET", "headers": []}
        sending = asyncio.create_task(maintenance._Sent(folder)(scope, never, never))
        assert (await asyncio.wait({sending}, timeout=10))[0]
        with pytest.raises(TimeoutError):
            sending.result()

    in_own_loop(send_it)
    assert copies(tmp_path) == []
    maintenance._copies.take()  # it is free again
    maintenance._copies.give_back()


def test_a_body_that_trickles_in_keeps_nobody_from_a_backup(server: Server, tmp_path: Path) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        head = f"PUT /api/v1/restore HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: 1000\r\n\r\n"
        slow.sendall(head.encode() + b"SQLite")
        while not copies(tmp_path):  # the server has begun to take it; pytest's limit bounds this
            server.client.get("/healthz")
        assert server.client.get("/api/v1/backup").status_code == 200


def test_a_body_must_come_at_some_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(maintenance, "SLOW_S", 0.05)

    async def trickle() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    request = Request({"type": "http", "method": "PUT", "headers": []}, trickle)
    with pytest.raises(ApiError) as raised:
        in_own_loop(lambda: asyncio.wait_for(maintenance._receive(request, tmp_path / "x.db"), 20))
    assert (raised.value.status, raised.value.code) == (408, "slow_body")


@pytest.fixture
def postgres_app(postgres_url: str) -> Iterator[TestClient]:
    application = create_app(Settings(db=postgres_url))
    with TestClient(application, base_url="http://127.0.0.1:8642") as client:
        body = wire.encode(opening(catalogue(1)))
        application.state.writer.submit(wire.decode(body), body).result(30)
        yield client


def test_other_servers_hear_of_a_deletion(postgres_app: TestClient, postgres_url: str) -> None:
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"LISTEN {announce.CHANNEL}")
        assert postgres_app.delete("/api/v1/runs/1").status_code == 200
        heard = [each.payload for each in other.notifies(timeout=10, stop_after=1)]
    assert len(heard) == 1 and '"changes":[[1,null]]' in heard[0]


def test_copies_are_written_to_a_volume_and_not_to_memory() -> None:
    shared, services = (ROOT / "docker-compose.yml").read_text().split("\nservices:\n")
    assert "read_only: true" in shared and "    TMPDIR: /data " in shared
    servers = [each for each in services.split("\n\n") if "<<: *server" in each]
    assert len(servers) == 2 and all(":/data\n" in f"{each}\n" for each in servers)
