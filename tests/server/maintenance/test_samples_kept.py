"""Samples over time: joined, thinned by age and size, deleted with their run, moved by backups, migrated."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, func, inspect, make_url, select, text, update

from rangewatch.wire.records import Batch, Event, Samples, StreamHeader
from rangewatch_server.maintenance.copies.backup_file import BadBackup
from rangewatch_server.maintenance.retention.background import AT_ONCE, NEWEST, Retention, join_samples
from rangewatch_server.maintenance.retention.plan import held_bytes, planned, run_details
from rangewatch_server.maintenance.retention.policy import (
    DAY_NS,
    HOUR_NS,
    Policy,
    Remove,
    StoredSamples,
    Thin,
    Trim,
    plan,
)
from rangewatch_server.maintenance.retention.prune import apply, finish_deletions, table_of
from rangewatch_server.maintenance.retention.runs_delete import mark_deleted
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.samples import Chunk, newest, samples
from rangewatch_server.store import tables
from rangewatch_server.store.engine import MIGRATIONS, open_database
from rangewatch_server.store.samples import Part, encode
from tests.server.maintenance.test_backup import put, take
from tests.server.maintenance.test_deletion import run_command
from tests.server.maintenance.test_retention import NOW, facts, jobs_of
from tests.server.maintenance.test_retention_faults import wait_until
from tests.server.opened_store import Store
from tests.server.query.test_samples import BEGAN, KNOWN, SECOND, damage, gpu, latest, read, rows_in, sampled
from tests.server.records import batch, opening

PER_CHUNK = 2
MOVES = ["sqlite to postgres", "postgres to sqlite"]


@pytest.fixture(params=["sqlite to sqlite", *(pytest.param(each, marks=pytest.mark.slow) for each in MOVES)])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of two databases: one from which runs are moved, and the other."""
    first, second = (
        str(request.getfixturevalue("postgres_url")) if kind == "postgres" else f"sqlite:///{tmp_path}/{number}.db"
        for number, kind in enumerate(request.param.split(" to "))
    )
    return first, second


def fill(store: Store, chunks: int, rank: int = 0, ends: bool = False, run: str = "run") -> None:
    """Two keys, chunk after chunk, with facts that grow and a column that is there now and then."""
    messages: list[StreamHeader | Batch] = [opening(KNOWN, run=run, rank=rank, world_size=2)]
    for sequence in range(chunks):
        at = sequence * PER_CHUNK
        about = {"names": list(range(sequence // 40))}
        other = {"now_and_then": np.arange(PER_CHUNK) * 1.0} if sequence % 50 == 7 else {}
        both = gpu(at, PER_CHUNK, about=about, **other), gpu(at, PER_CHUNK, key="GPU-b", source="host")
        events = (Event("finished", 0, at // 10),) if ends and sequence == chunks - 1 else ()
        steps = [at // 10 + sequence % 5]
        messages.append(sampled(sequence, *both, steps=steps, run=run, rank=rank, events=events))
    store.send_all(messages)


def everything(store: Store, run_id: int = 1) -> list[Any]:
    """All rows, bit by bit, and the newest ones."""
    with store.queries.read() as reader:
        run = reader.run(run_id)
        assert run is not None
        chunks = [each for source in ("gpu", "host") for each in samples(run, source)]
        part = samples(run, "gpu", start_ns=BEGAN + 31 * SECOND, stop_ns=BEGAN + 205 * SECOND, last_step=18)
        return [*map(bits, chunks), *map(bits, part), *map(str, newest(run, "gpu"))]


def bits(chunk: Chunk) -> tuple[Any, ...]:
    columns = {name: values.tobytes() for name, values in sorted(chunk.columns.items())}
    return chunk.rank, chunk.key, chunk.incarnation, chunk.times_ns.tobytes(), columns, chunk.about


def join(store: Store) -> int:
    return join_samples(jobs_of(store), store.engines.reader, 1)


def test_joined_chunks_read_exactly_as_before(store: Store) -> None:
    chunks = 2 * AT_ONCE + NEWEST + 10
    for rank in range(2):
        fill(store, chunks, rank)
    before = everything(store)
    assert join(store) == 2 * 2 * 2 * (AT_ONCE - 1)
    assert everything(store) == before
    assert rows_in(store) == 2 * 2 * (2 + NEWEST + 10)
    assert join(store) == 0  # the newest stay
    store.send(sampled(chunks, gpu(chunks * PER_CHUNK)))
    assert not store.send(sampled(3, gpu(6))).contiguous < chunks  # of what is joined nothing is taken twice
    assert read(store, ranks=[0])[0].times_ns[-1] == BEGAN + (chunks * PER_CHUNK + 1) * SECOND


def test_when_a_rank_has_ended_all_of_it_is_joined(store: Store) -> None:
    fill(store, 70, ends=True)
    before = everything(store)
    assert join(store) == 2 * (70 - 2)
    assert rows_in(store) == 4 and everything(store) == before
    assert join(store) == 0 and waiting(store) == 0


def test_joined_chunks_stay_small_and_short(store: Store) -> None:
    store.send(opening(KNOWN))
    for sequence, (at, rows) in enumerate([(0, 1_700), (1_700, 1_700), (3_400, 1_700), (9_000, 2), (9_100, 2_100)]):
        store.send(sampled(sequence, gpu(at, rows)))
    store.send(sampled(5, gpu(12_000, 2), events=(Event("finished", 0, 0),)))
    before = everything(store)
    assert join(store) == 2
    assert everything(store) == before
    with store.engines.reader.connect() as connection:
        rows = select(tables.samples.c.row_count).order_by(tables.samples.c.sequence)
        assert connection.execute(rows).scalars().all() == [3_400, 1_700, 4, 2_100]


def test_many_rows_in_a_short_time_are_not_joined_into_too_large_ones(store: Store) -> None:
    """Collectives: thousands in a minute. And one that is alone need not be looked at again."""
    store.send(opening(KNOWN))
    for sequence in range(3):
        times = BEGAN + np.arange(1_700) + sequence * SECOND
        events = (Event("finished", 0, 0),) if sequence == 2 else ()
        store.send(sampled(sequence, Samples("gpu", "", times, {"n": np.arange(1_700.0)}), events=events))
    before = everything(store)
    assert join(store) == 1 and everything(store) == before
    store.send(sampled(3, gpu(0, key="alone")))
    assert join(store) == 0 and waiting(store) == 0
    with store.engines.reader.connect() as connection:
        assert sorted(connection.execute(select(tables.samples.c.row_count)).scalars()) == [2, 1_700, 3_400]


def waiting(store: Store) -> int:
    """Chunks that would be looked at again."""
    mine = select(func.count()).select_from(tables.samples).where(tables.samples.c.joined == 0)
    with store.engines.reader.connect() as connection:
        return int(connection.execute(mine).scalar_one())


def test_damaged_chunks_are_not_joined_and_not_lost(store: Store) -> None:
    fill(store, 20, ends=True)
    damage(store, 7)
    before = everything(store)
    assert join(store) == (20 - 2) + (20 - 1)
    assert everything(store) == before
    with store.queries.read() as reader:
        run = reader.run(1)
        samples(run, "gpu")
        assert len(run.damage) == 1
    assert join(store) == 0


def test_rows_that_change_meanwhile_are_left_alone(store: Store) -> None:
    fill(store, 20, ends=True)
    mine = tables.samples.c.sequence == 5
    real = jobs_of(store)

    def jobs(job: Any, *, forgets: bool = False) -> Any:
        with store.engines.writer.begin() as connection:
            connection.execute(tables.samples.delete().where(mine))
        return real(job, forgets=forgets)

    before = everything(store)
    assert join_samples(jobs, store.engines.reader, 1) == 18  # of the other source, which was read after that
    assert everything(store) != before and rows_in(store) == 19 + 1  # what went is not brought back
    assert join(store) == 18


def test_the_server_joins_by_itself(store: Store) -> None:
    fill(store, 70, ends=True)
    before = everything(store)
    retention = Retention(store.writer, store.engines, Policy())
    retention.start()
    wait_until(lambda: rows_in(store) == 4)
    retention.stop()
    assert everything(store) == before


def hours(count: int = 30, last: int = NOW // HOUR_NS) -> tuple[StoredSamples, ...]:
    return tuple(StoredSamples(last - count + 1 + number, 10, 10**6) for number in range(count))


def test_age_takes_samples_older_than_that() -> None:
    (only,) = plan([facts(1, 0, steps=0, samples=hours())], Policy(keep_days=0.5), NOW, 0)
    assert isinstance(only, Trim)
    assert (only.before_ns, only.chunks, only.bytes) == (NOW - DAY_NS // 2, 170, 17 * 10**6)
    assert plan([facts(1, 0, samples=hours())], Policy(), NOW, 10**15) == []


def test_size_takes_samples_after_single_steps_and_before_coarser_ones() -> None:
    run = facts(1, 0, samples=hours())
    tiles = sum(each.bytes for each in run.stored if each.level == 0)
    used = 2 * 10**9
    little = plan([run], Policy(keep_bytes=used - tiles), NOW, used)
    assert [type(each) for each in little] == [Thin]
    more = plan([run], Policy(keep_bytes=used - tiles - 5 * 10**6), NOW, used)
    assert [(type(each), each.bytes) for each in more] == [(Thin, tiles), (Trim, 5 * 10**6)]
    most = plan([run], Policy(keep_bytes=used - tiles - 31 * 10**6), NOW, used)
    assert [type(each) for each in most] == [Thin, Trim]
    assert most[0].level > 1 and most[1].chunks == 300
    assert [type(each) for each in plan([run], Policy(keep_bytes=0), NOW, used)] == [Remove]


def test_a_live_runs_newest_samples_stay() -> None:
    (only,) = plan([facts(1, 0, ended=False, steps=0, samples=hours())], Policy(keep_bytes=0), NOW, 10**9)
    assert only.chunks == 280  # but those of the hour that began and of the one before


@pytest.fixture
def old(store: Store) -> Store:
    """A run of 30 hours, one chunk of an hour each, of an agent whose clock is a year ahead; a NaN at step 1,000."""
    store.send(opening(KNOWN))
    for sequence in range(30):
        at = np.array([BEGAN + 365 * DAY_NS + sequence * HOUR_NS])
        table = Samples("gpu", "", at, {"step": np.array([sequence * 100.0]), "n": np.array([1.0 * sequence])})
        steps = range(sequence * 100, sequence * 100 + 100)
        nans = {"nan_count": np.where(np.array(steps) == 1_000, 1.0, 0.0)}
        events = (Event("finished", 0, 2_999),) if sequence == 29 else ()
        store.send(sampled(sequence, table, steps=steps, columns=nans, events=events))
    with store.engines.writer.begin() as connection:  # the run began 40 hours ago
        connection.execute(update(tables.runs).values(created_ns=time.time_ns() - 40 * HOUR_NS))
    return store


def numbers(store: Store) -> list[float]:
    return [] if not (found := read(store)) else found[0].columns["n"].tolist()


def test_old_samples_go_and_those_around_events_stay(old: Store) -> None:
    policy = Policy(keep_days=0.5)
    actions = planned(old.engines.reader, policy)
    trims = [each for each in actions if isinstance(each, Trim)]
    shown = table_of(actions)
    assert len(trims) == 1 and any("samples from before 20" in line and " UTC" in line for line in shown), shown
    reported: list[str] = []
    apply(jobs_of(old), old.engines.writer, actions, reported.append)
    left = numbers(old)
    # Twelve hours and the one that was cut; where the process began, and around its NaN.
    assert left[:4] == [0, 1, 9, 10] and left[-12:] == list(range(18, 30)) and len(left) in (16, 17), left
    assert len(left) == 30 - trims[0].chunks
    assert any(f"{trims[0].chunks} chunks of samples" in line for line in reported)
    assert planned(old.engines.reader, policy) == []


def test_samples_are_counted(old: Store) -> None:
    found = run_details(old.engines.reader, 1, time.time_ns())
    assert found is not None and sum(each.chunks for each in found.samples) == 26
    with old.engines.reader.connect() as connection:
        payloads = connection.execute(select(func.sum(func.length(tables.samples.c.payload)))).scalar_one()
        tiles = connection.execute(select(func.sum(func.length(tables.tiles.c.payload)))).scalar_one()
    assert found.bytes > payloads + tiles
    assert held_bytes(old.engines.reader) > payloads


def test_a_run_of_samples_only_is_thinned_too(store: Store) -> None:
    """A training that hangs in its first step, watched for days."""
    store.send(opening(KNOWN))
    for sequence in range(4):
        store.send(sampled(sequence, gpu(sequence * 3_600 * 8)))
    with store.engines.writer.begin() as connection:
        connection.execute(update(tables.runs).values(created_ns=0))
    found = planned(store.engines.reader, Policy(keep_days=0.5))
    assert [(type(each), each.bytes > 0) for each in found] == [(Trim, True)]
    apply(jobs_of(store), store.engines.writer, found, lambda _: None)
    assert rows_in(store) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_shows_them(old: Store, sqlite_url: str) -> None:
    shown = run_command("prune", "--db", str(make_url(sqlite_url).database), "--keep-days", "0.5", "--dry-run")
    assert shown.returncode == 0 and "samples from before" in shown.stdout, shown
    assert len(numbers(old)) == 30


def test_a_deleted_run_takes_its_samples_along(store: Store) -> None:
    fill(store, 50)
    fill(store, 5, run="other")
    jobs_of(store)(lambda connection: mark_deleted(connection, 1), forgets=True)
    assert finish_deletions(jobs_of(store), store.engines.reader) == [1]
    with store.engines.reader.connect() as connection:
        assert set(connection.execute(select(tables.samples.c.run_id)).scalars()) == {2}
        if connection.dialect.name == "postgresql":
            assert "samples_run_1" not in inspect(connection).get_table_names()


@pytest.mark.slow
def test_backups_move_them_between_databases(
    urls: tuple[str, str], open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    store, other = (open_store(each) for each in urls)
    fill(other, 1, run="its own")
    for rank in range(2):
        fill(store, AT_ONCE + NEWEST, rank)
    join(store)
    store.send(sampled(AT_ONCE + NEWEST + 1, gpu(5_000)))  # beyond a gap
    before = everything(store)
    assert put(other, take(store, urls[0], tmp_path / "backup.db")).added == ["run"]
    assert everything(other, 2) == before
    for each in (store, other):
        assert each.send(sampled(AT_ONCE + NEWEST + 1, gpu(5_000))).duplicate
        assert each.send(sampled(AT_ONCE + NEWEST, gpu(4_000))).contiguous == AT_ONCE + NEWEST + 1
    assert everything(other, 2) == everything(store)
    assert len(join_all_of(other, 2)) == 0


def join_all_of(store: Store, run_id: int) -> list[str]:
    """What reading says after joining that it did not say before."""
    before = everything(store, run_id)
    join_samples(jobs_of(store), store.engines.reader, run_id)
    return [str(each) for each in everything(store, run_id) if each not in before]


@pytest.fixture
def good(tmp_path: Path, open_store: Callable[[str], Store]) -> Path:
    url = f"sqlite:///{tmp_path}/good.db"
    store = open_store(url)
    fill(store, 3)
    return take(store, url, tmp_path / "backup.db")


NAN_STEP = encode([Part(np.arange(2), {"step": np.array([np.nan, 1.0])}, b"{}")]).hex()
LIST_ABOUT = encode([Part(np.arange(2), {}, b"[]")]).hex()
TWO_HOURS = encode([Part(np.array([0, 2 * HOUR_NS]), {}, b"{}")]).hex()
HOSTILE = {
    "damaged": "UPDATE samples SET payload = CAST(substr(payload, 1, 40) || x'00' || substr(payload, 42) AS BLOB)",
    "short": "UPDATE samples SET payload = x'52575331'",
    "source": "UPDATE samples SET source = ''",
    "long source": "UPDATE samples SET source = printf('%0101d', 1)",
    "long key": "UPDATE samples SET sample_key = printf('%0513d', 1)",
    "other time": "UPDATE samples SET last_ns = last_ns + 1",
    "other steps": "UPDATE samples SET first_step = NULL",
    "other count": "UPDATE samples SET row_count = 3",
    "joined": "UPDATE samples SET joined = 7",
    "number": "UPDATE samples SET number = -1 WHERE number = 1",
    "stream of nobody": "UPDATE samples SET stream_id = 99",
    "NaN step": f"UPDATE samples SET first_ns=0, last_ns=1, first_step=0, last_step=1, payload = x'{NAN_STEP}'",
    "facts": f"UPDATE samples SET first_ns=0, last_ns=1, first_step=NULL, last_step=NULL, payload = x'{LIST_ABOUT}'",
    "span": f"UPDATE samples SET first_ns=0, last_ns={2 * HOUR_NS}, first_step=NULL, last_step=NULL, "
    f"payload=x'{TWO_HOURS}'",
}


def test_samples_that_cannot_be_are_not_restored(
    good: Path, tmp_path: Path, open_store: Callable[[str], Store]
) -> None:
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    for kind, statement in HOSTILE.items():
        spoilt = tmp_path / f"{kind}.db"
        spoilt.write_bytes(good.read_bytes())
        with sqlite3.connect(spoilt) as connection:
            connection.executescript(f"PRAGMA foreign_keys=OFF; {statement}")
        connection.close()
        with pytest.raises(BadBackup):
            put(other, spoilt)
        assert rows_in(other) == 0, kind


def migrate(url: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
        assert "samples" not in inspect(connection).get_table_names()
    engine.dispose()


def test_a_database_without_samples_is_taken_on_with_its_data(
    database_url: str, open_store: Callable[[str], Store]
) -> None:
    store = open_store(database_url)
    for run in ("run", "gone"):
        store.send(opening(KNOWN, run=run))
        store.send(batch(KNOWN, 0, range(100), {"amax": 8.0}, run=run))
    jobs_of(store)(lambda connection: mark_deleted(connection, 2), forgets=True)
    finish_deletions(jobs_of(store), store.engines.reader)
    store.send(sampled(1, gpu(0)))
    store.close()
    migrate(database_url, "0003")
    open_database(database_url).dispose()
    store = open_store(database_url)
    with store.queries.read() as reader:
        found = reader.run(1).slice(RANGES, [0], 0, 0, 100, ("amax",))
        assert found.columns["amax"].tolist() == [[8.0] * 100]
    assert read(store) == []
    store.send(sampled(2, gpu(2)))
    store.send(opening(KNOWN, run="new"))
    store.send(sampled(0, gpu(2), run="new"))
    assert [len(each.times_ns) for each in read(store)] == [2] and len(latest(store)) == 1
    if store.engines.reader.dialect.name == "postgresql":
        with store.engines.reader.connect() as connection:
            names = set(inspect(connection).get_table_names())
            assert {"samples_run_1", "samples_run_3"} <= names and "samples_run_2" not in names
            assert connection.execute(text("SELECT count(*) FROM samples_run_3")).scalar() == 1


def test_a_backup_of_older_samples_is_brought_to_this_schema(good: Path, tmp_path: Path, open_store: Any) -> None:
    migrate(f"sqlite:///{good}", "0003")
    other = open_store(f"sqlite:///{tmp_path}/new.db")
    assert put(other, good).added == ["run"]
    assert rows_in(other) == 0


def test_facts_that_grow_in_every_chunk_are_joined(store: Store) -> None:
    store.send(opening(KNOWN))
    for sequence in range(70):
        events = (Event("finished", 0, 0),) if sequence == 69 else ()
        message = sampled(sequence, gpu(sequence * 2, about={"names": list(range(sequence))}))
        store.send(msgspec.structs.replace(message, events=events))
    before = everything(store)
    assert join(store) == 68 and everything(store) == before
    assert [len(each.about["names"]) for each in read(store)] == [69]
