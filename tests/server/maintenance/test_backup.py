"""Backups: one moment while messages come, restored into either database; and files that nobody should trust."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url, select

from rangewatch.wire.records import Event
from rangewatch_server.ingest.commands import Ask
from rangewatch_server.maintenance.copies.backup import snapshot
from rangewatch_server.maintenance.copies.backup_file import BadBackup, open_backup
from rangewatch_server.maintenance.copies.restore import Restored, restore
from rangewatch_server.maintenance.jobs import QueuedJobs
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART, SUMMARY
from rangewatch_server.store import tables
from tests.server.maintenance.test_deletion import run_command
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

TENSORS, SIZE = 5, 150
BOTH = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True
)
WANTED = {RANGES: ["call_count", "amax", "nan_count", "amax_step"], SUMMARY: ["bits"], SERIES_PART: ["sum", "count"]}


@pytest.fixture
def other_url(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the other kind."""
    if make_url(database_url).get_backend_name() == "sqlite":
        yield str(request.getfixturevalue("postgres_url"))
    else:
        yield f"sqlite:///{tmp_path / 'other.db'}"


def send(store: Store, run: str, first: int, batches: int, rank: int = 0) -> None:
    known = catalogue(TENSORS)
    if first == 0:
        store.send(opening(known, run, rank, world_size=2))
    random = np.random.default_rng(rank)
    for sequence in range(first, first + batches):
        steps = range(sequence * SIZE, (sequence + 1) * SIZE)
        amax = np.exp2(random.normal(0, 3, (TENSORS, SIZE)))
        events = (Event("dropped", 5, steps[0], "full", {"queue_full": sequence}),)
        series = {"loss": random.random(SIZE)}
        store.send(batch(known, sequence, steps, {"amax": amax}, run=run, rank=rank, series=series, events=events))


def everything(store: Store, name: str, last: int) -> list[Any]:
    """Every slice of a run up to a step, and what is said of it beside, without numbers and times."""
    with store.queries.read() as reader:
        runs = [found for each in reader.run_ids() if (found := reader.run(each)) is not None]
        run = next(each for each in runs if each.name == name)
        found: list[Any] = [sorted(run.ranks), run.first_step, run.names().series]
        for part, wanted in WANTED.items():
            for level in range(4):
                for rank in sorted(run.ranks):
                    for start, stop in ((0, last), (17, min(333, last))):
                        block = run.slice(part, [rank], level, start, stop, wanted)
                        found += [values.astype(float).tobytes() for values in block.columns.values()]
    return found


def take(store: Store, url: str, path: Path) -> Path:
    snapshot(store.engines.reader, make_url(url).database or "", path, lambda _: None)
    return path


def put(store: Store, path: Path, replace: bool = False) -> Restored:
    with open_backup(path) as file:
        return restore(QueuedJobs(store.writer), store.engines.reader, file, replace, lambda _: None)


@pytest.mark.parametrize("batches", [8, pytest.param(60, marks=pytest.mark.soak)])
@BOTH
def test_a_backup_taken_while_messages_come_moves_to_the_other_database(
    database_url: str, other_url: str, batches: int, open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    store = open_store(database_url)
    for rank in range(2):
        send(store, "run", 0, batches, rank)
    send(store, "späte Läufe", 0, 1)
    store.writer.command(Ask(1, {"kind": "trace", "steps": 1}, None, 2)).result(10)
    ended = threading.Event()

    def go_on() -> None:
        first = batches
        while not ended.is_set():
            send(store, "run", first, 1)
            first += 1

    sending = threading.Thread(target=go_on)
    sending.start()
    path = take(store, database_url, tmp_path / "backup.db")
    other = open_store(other_url)
    send(other, "its own", 0, 1)
    found = put(other, path)
    ended.set()
    sending.join()
    assert found.added == ["run", "späte Läufe"] and found.skipped == []
    last = batches * SIZE  # all of this was acknowledged before the backup began
    assert everything(other, "run", last) == everything(store, "run", last)
    assert everything(other, "späte Läufe", SIZE) == everything(store, "späte Läufe", SIZE)
    with other.engines.reader.connect() as connection:
        events = connection.execute(select(tables.events).order_by(tables.events.c.id)).all()
        asked = connection.execute(select(tables.command_ranks)).all()
    assert len([event for event in events if event.kind == "dropped"]) >= 2 * batches + 2
    assert len(asked) == 2
    with sqlite3.connect(path) as reader:
        assert reader.execute("PRAGMA quick_check").fetchone() == ("ok",)
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    reader.close()


@BOTH
def test_a_restored_run_goes_on(database_url: str, open_store: Callable[[str], Store], tmp_path: Path) -> None:
    store = open_store(database_url)
    send(store, "run", 0, 5)
    path = take(store, database_url, tmp_path / "backup.db")
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    put(other, path)
    for each in (store, other):
        send(each, "run", 5, 5)
    assert everything(other, "run", 10 * SIZE) == everything(store, "run", 10 * SIZE)


@BOTH
def test_runs_that_are_there_stay_unless_they_are_to_be_replaced(
    database_url: str, open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    store = open_store(database_url)
    send(store, "run", 0, 3)
    path = take(store, database_url, tmp_path / "backup.db")
    send(store, "run", 3, 2)
    assert put(store, path).skipped == ["run"]
    assert last_steps(store) == {"run": 5 * SIZE - 1}
    assert put(store, path, replace=True).added == ["run"]
    assert last_steps(store) == {"run": 3 * SIZE - 1}
    send(store, "run", 3, 1)  # the writer knows the new one by that name
    assert last_steps(store) == {"run": 4 * SIZE - 1}
    with store.engines.reader.connect() as connection:
        assert connection.execute(select(tables.tiles.c.tile).where(tables.tiles.c.run_id == 1)).first() is None


def last_steps(store: Store) -> dict[str, int | None]:
    with store.queries.read() as reader:
        runs = [found for each in reader.run_ids() if (found := reader.run(each)) is not None]
        return {run.name: run.last_step for run in runs}


@BOTH
def test_a_run_shows_only_when_it_is_whole(database_url: str, open_store: Callable[[str], Store], tmp_path) -> None:
    store = open_store(database_url)
    send(store, "run", 0, 5)
    path = take(store, database_url, tmp_path / "backup.db")
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    seen: list[dict[str, int | None]] = []
    real = QueuedJobs(other.writer)

    def jobs(job: Any, *, forgets: bool = False) -> Any:
        seen.append(last_steps(other))
        return real(job, forgets=forgets)

    with open_backup(path) as file:
        restore(jobs, other.engines.reader, file, False, lambda _: None)  # type: ignore[arg-type]
    assert len(seen) > 5 and all(each == {} for each in seen)
    assert last_steps(other) == {"run": 5 * SIZE - 1}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a run of five batches."""
    folder = tmp_path_factory.mktemp("kept")
    store = Store(f"sqlite:///{folder}/good.db")
    send(store, "run", 0, 5)
    path = take(store, f"sqlite:///{folder}/good.db", folder / "backup.db")
    store.close()
    return path


@pytest.fixture
def good(kept: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copy(kept, tmp_path / "backup.db"))


HOSTILE = {
    "view": "CREATE VIEW v AS SELECT 1",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM tiles; END",
    "table": "CREATE TABLE other (x)",
    "virtual table": "CREATE VIRTUAL TABLE other USING fts5(x)",
    "newer": "UPDATE alembic_version SET version_num = '9999'",
    "no version": "DELETE FROM alembic_version",
    "text for a number": "UPDATE streams SET frontier = 'many'",
    "number for text": "UPDATE runs SET name = x'00ff'",
    "NUL": "UPDATE runs SET name = 'a' || char(0) || 'b'",
    "too long": "UPDATE runs SET name = printf('%05000d', 1)",
    "no name": "UPDATE runs SET name = ''",
    "ragged frontier": "UPDATE streams SET frontier = frontier + 1",
    "bad rank": "UPDATE streams SET rank = -7",
    "info": "UPDATE streams SET info = x'7b'",
    "damaged tile": "UPDATE tiles SET payload = CAST(substr(payload, 1, 40) || x'00' || substr(payload, 42) AS BLOB)",
    "short tile": "UPDATE tiles SET payload = x'52575431'",
    "part": "UPDATE tiles SET part = 'other' WHERE part = 'ranges'",
    "bad body": "UPDATE batches SET body = x'28b52ffd'",
    "catalogue": "UPDATE catalogues SET body = x'28b52ffd'",
    "ordinals": "UPDATE catalogues SET ordinals = zeroblob(16)",
    "tensor": "UPDATE tensors SET fqn = 'other' WHERE ordinal = 1",
    "missing tensor": "DELETE FROM tensors WHERE ordinal = 1",
    "series": "UPDATE series SET ordinal = 9",
    "event": "UPDATE events SET data = x'ff'",
    "stream of nobody": "UPDATE tiles SET stream_id = 99",
    "dropped table": "DROP TABLE tiles",
}


def refused(other: Store, path: Path) -> str:
    """Why a backup is not taken; what is there already is left as it was."""
    with pytest.raises(BadBackup) as raised:
        put(other, path)
    assert last_steps(other) == {"its own": SIZE - 1}
    with other.engines.reader.connect() as connection:
        assert connection.execute(select(tables.tiles.c.tile).where(tables.tiles.c.run_id > 1)).first() is None
    return str(raised.value)


@pytest.fixture
def other(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    """One that has a run of its own."""
    store = open_store(sqlite_url)
    send(store, "its own", 0, 1)
    return store


def test_what_is_no_backup_of_ours_is_refused_and_leaves_nothing(kept: Path, tmp_path: Path, other: Store) -> None:
    for kind, script in HOSTILE.items():
        path = Path(shutil.copy(kept, tmp_path / f"{kind}.db"))
        with sqlite3.connect(path) as connection:
            connection.executescript(f"PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON; {script}")
        connection.close()
        assert refused(other, path), kind
        path.unlink()


def test_what_is_no_sqlite_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    random = np.random.default_rng(0).bytes(5_000)
    for body in (b"", b"PK\3\4", b"SQLite format 3\0" + b"\0" * 200, random):
        path.write_bytes(body)
        with pytest.raises(BadBackup), open_backup(path):
            pass


@pytest.mark.parametrize("files", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_cut_and_garbled_files_never_get_past(
    files: int, good: Path, tmp_path: Path, open_store: Callable[[str], Store]
) -> None:
    """It is `BadBackup` and nothing else, unless what was changed is nothing that anybody reads."""
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    put(other, good)
    before = everything(other, "run", 5 * SIZE)
    random = np.random.default_rng(0)
    whole = good.read_bytes()
    path = tmp_path / "x.db"
    for number in range(files):
        data = bytearray(whole[: len(whole) if number % 3 else int(random.integers(100, len(whole)))])
        for at in random.integers(0, len(data), 1 + number % 30):
            data[at] = int(random.integers(256))
        path.write_bytes(data)
        with contextlib.suppress(BadBackup):
            put(other, path, replace=True)
        assert last_steps(other) == {"run": 5 * SIZE - 1}
        assert everything(other, "run", 5 * SIZE) == before


def test_an_older_backup_is_brought_to_this_schema(tmp_path: Path, open_store: Callable[[str], Store]) -> None:
    from alembic import command
    from alembic.config import Config

    from rangewatch_server.store.engine import MIGRATIONS

    url = f"sqlite:///{tmp_path}/old.db"
    store = open_store(url)
    send(store, "run", 0, 5)
    before = everything(store, "run", 5 * SIZE)
    path = take(store, url, tmp_path / "backup.db")
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
    engine.dispose()
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    assert put(other, path).added == ["run"]
    assert everything(other, "run", 5 * SIZE) == before


def test_the_commands_move_runs_between_servers_and_files(
    start_server: Callable[..., Server], run: Run, tmp_path: Path
) -> None:
    """From a server of its own to the worker's."""
    one = Run(start_server(db=str(tmp_path / "one.db")), run.name)
    known = catalogue(3)
    one.post(opening(known))
    for sequence in range(8):
        one.post(batch(known, sequence, range(sequence * 100, sequence * 100 + 100)))
    file, url = tmp_path / "backup.db", run.server.url
    made = run_command("backup", str(file), "--url", one.server.url)
    assert made.returncode == 0 and "tiles and samples verified" in made.stdout, made
    assert run_command("backup", str(file), "--url", one.server.url).returncode == 2  # it is there already
    came = run_command("restore", str(file), "--url", url)
    assert came.returncode == 0 and "1 runs restored" in came.stderr, came
    path = "/figures/layers?start=100&stop=700&rank=0"
    assert run.get(path) == one.get(path)
    again = run_command("restore", str(file), "--url", url)
    assert again.returncode == 0 and "skipped" in again.stderr, again
    bad = run_command("restore", __file__, "--url", url)
    assert bad.returncode == 2 and "no SQLite file" in bad.stderr, bad
    one.server.stop()
    offline = run_command("backup", str(tmp_path / "offline.db"), "--db", str(tmp_path / "one.db"))
    assert offline.returncode == 0, offline
    come = run_command("restore", str(tmp_path / "offline.db"), "--db", str(tmp_path / "three.db"))
    assert come.returncode == 0 and "1 runs restored" in come.stderr, come
    itself = run_command("backup", str(tmp_path / "one.db"), "--db", str(tmp_path / "one.db"), "--replace")
    assert itself.returncode == 2 and "itself" in itself.stderr, itself
    assert not [each.name for each in tmp_path.iterdir() if "rangewatch-" in each.name]


def test_a_damaged_backup_is_seen(good: Path, tmp_path: Path) -> None:
    with sqlite3.connect(good) as connection:
        connection.execute(HOSTILE["damaged tile"])
    connection.close()
    out = tmp_path / "again.db"
    made = run_command("backup", str(out), "--db", str(good))
    assert made.returncode == 2 and "damaged" in made.stderr, made
    assert not out.exists()
    assert run_command("backup", str(out), "--db", str(good), "--no-verify").returncode == 0
