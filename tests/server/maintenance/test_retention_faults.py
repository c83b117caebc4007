"""Retention when something is wrong: damaged tiles, clocks, runs that go on again, plans that ask for nonsense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from rangewatch import wire
from rangewatch.commands.maintenance import prune as prune_command
from rangewatch.wire.records import Batch, Event, RankInfo, Samples, StreamHeader
from rangewatch_server.core import deadline
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.http.drain import CLOSE_S
from rangewatch_server.maintenance import command
from rangewatch_server.maintenance.retention import clocks
from rangewatch_server.maintenance.retention.background import JOIN_S, Retention
from rangewatch_server.maintenance.retention.plan import held_bytes, kept_tiles, planned, run_details
from rangewatch_server.maintenance.retention.policy import DAY_NS, Policy, Remove, Span, Thin, Trim, plan
from rangewatch_server.maintenance.retention.prune import apply
from rangewatch_server.maintenance.retention.runs_delete import mark_deleted, unfinished
from rangewatch_server.numerics.pyramid import SUMMARY
from rangewatch_server.routes import maintenance
from rangewatch_server.store import tables
from rangewatch_server.store.engine import hold
from tests.server.maintenance.test_retention import NOW, facts, fill, jobs_of, level_0, thin_all, truth
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening
from tests.server.store.test_migrations import go_back_to

__all__ = ["truth"]  # a fixture
KNOWN = catalogue(3)
SIZE = 512


def ended(store: Store, run: str = "run", steps: int = 4_096, first: int = 0, incarnation: str = "a") -> None:
    """A run of one rank that has said goodbye, with numbers that do not compress."""
    random = np.random.default_rng(1)
    messages: list[StreamHeader | Batch] = [opening(KNOWN, run, incarnation=incarnation)]
    for sequence, low in enumerate(range(first, first + steps, SIZE)):
        amax = {"amax": random.random((3, SIZE))}
        messages.append(batch(KNOWN, sequence, range(low, low + SIZE), amax, run=run, incarnation=incarnation))
    last = batch(KNOWN, steps // SIZE, range(0), run=run, incarnation=incarnation, events=(Event("finished", 0, 0),))
    store.send_all([*messages, last])


def run_ids(store: Store) -> list[int]:
    with store.queries.read() as reader:
        return reader.run_ids()


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def test_under_a_damaged_tile_everything_stays(store: Store) -> None:
    ended(store, steps=2_048)
    tile = tables.tiles.c
    with store.engines.writer.begin() as connection:
        before = kept_tiles(connection, 1)
        broken = (tile.part == SUMMARY) & (tile.level == 1) & (tile.tile == 3)
        assert connection.execute(update(tables.tiles).where(broken).values(payload=b"RWT1 no tile")).rowcount == 1
        after = kept_tiles(connection, 1)
    assert after == before | set(range(23, 33))  # its eight tiles, and those beside them
    assert [type(each) for each in planned(store.engines.reader, Policy(keep_days=1e-9))] == [Thin]


@pytest.fixture
def broken_retention(store: Store) -> Iterator[Retention]:
    """Its policy makes every plan fail, as an error of ours would. The test starts it, whose log is read then."""
    retention = Retention(store.writer, store.engines, Policy(keep_bytes="much"))  # type: ignore[arg-type]
    yield retention
    retention.stop()


def test_an_error_of_ours_does_not_end_retention(
    store: Store, broken_retention: Retention, caplog: pytest.LogCaptureFixture
) -> None:
    ended(store, steps=SIZE)
    broken_retention.start()
    wait_until(lambda: "retention failed" in caplog.text)
    jobs_of(store)(lambda connection: mark_deleted(connection, 1), forgets=True)
    broken_retention.wake()
    wait_until(lambda: not unfinished(store.engines.reader))
    with store.engines.reader.connect() as connection:
        assert connection.execute(select(tables.tiles.c.tile)).first() is None


@pytest.fixture
def app(sqlite_url: str) -> Iterator[TestClient]:
    application = create_app(Settings(db=sqlite_url))
    with TestClient(application, base_url="http://127.0.0.1:8642") as client:
        for message in (opening(KNOWN), batch(KNOWN, 0, range(SIZE)), opening(KNOWN, "other")):
            body = wire.encode(message)
            application.state.writer.submit(wire.decode(body), body).result(30)
        yield client


def test_an_error_of_ours_is_told_at_the_end_of_the_lines(app: TestClient) -> None:
    app.app.state.retention.policy = Policy(keep_bytes="much")  # type: ignore[attr-defined, arg-type]
    answer = app.post("/api/v1/prune")
    assert answer.status_code == 200 and '"internal"' in answer.text.splitlines()[-1]
    app.app.state.retention.policy = Policy()  # type: ignore[attr-defined]
    assert '"done"' in app.post("/api/v1/prune").text


def test_one_plan_and_one_prune_at_a_time(app: TestClient) -> None:
    for place, method in ((maintenance._plans, "GET"), (maintenance._prunes, "POST")):
        place.take()
        try:
            answer = app.request(method, "/api/v1/prune?keep_gb=1")
            assert (answer.status_code, answer.json()["code"]) == (429, "busy")
        finally:
            place.give_back()
        for _ in range(2):
            assert app.request(method, "/api/v1/prune?keep_gb=1").status_code == 200


def test_a_plan_ends_at_the_time_limit(app: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "READ_LIMIT_S", -1.0)
        patch.setattr(deadline, "SQLITE_INSTRUCTIONS", 1)
        answer = app.get("/api/v1/prune?keep_days=0.001")
        assert (answer.status_code, answer.json()["code"]) == (503, "time_limit")
    assert app.get("/api/v1/prune?keep_days=0.001").status_code == 200  # and its place is free again


def test_a_run_that_cannot_be_read_does_not_cost_the_list(app: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    names = [run["name"] for run in app.get("/api/v1/runs").json()["runs"]]
    assert names == ["other", "run"]
    with app.app.state.writer.engine.begin() as connection:  # type: ignore[attr-defined]
        bad = {"least_step": 1, "least_tensor": 100_000, "least_bits": 1.0, "version": 9}
        connection.execute(update(tables.streams).where(tables.streams.c.run_id == 1).values(bad))
    for _ in range(2):
        answer = app.get("/api/v1/runs")
        other, unreadable = answer.json()["runs"]
        assert (answer.status_code, other["name"], unreadable["state"]) == (200, "other", "unreadable")
    assert caplog.text.count("run 1 cannot be read; the list says so") == 1


def test_what_was_deleted_is_not_taken_from_other_runs(tmp_path: Path, open_store: Callable[[str], Store]) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    ended(store, "gone")
    ended(store, "stays")
    jobs_of(store)(lambda connection: mark_deleted(connection, 1), forgets=True)
    before = level_0(store)
    keep_bytes = int(held_bytes(store.engines.reader) * 0.9)
    assert planned(store.engines.reader, Policy(keep_bytes=keep_bytes)) == []
    lines = command.prune(f"{tmp_path}/a.db", {"keep_gb": keep_bytes / 1e9}, False, False, lambda _: None)
    assert lines == ["Nothing to remove."] and unfinished(store.engines.reader) == []
    assert run_ids(store) == [2] and level_0(store) == before


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_a_run_that_goes_on_again_is_not_removed(store: Store) -> None:
    ended(store)
    actions = planned(store.engines.reader, Policy(keep_bytes=1))
    assert [type(each) for each in actions] == [Remove]
    store.send(opening(KNOWN, incarnation="b"))
    reported: list[str] = []
    apply(jobs_of(store), store.engines.writer, actions, reported.append)
    assert run_ids(store) == [1] and any("goes on again" in line for line in reported)


def test_pages_are_told_of_what_retention_removed(store: Store) -> None:
    ended(store)
    ended(store, "newer")
    seen: list[Any] = []
    store.writer.on_change = seen.extend
    Retention(store.writer, store.engines, Policy()).prune(Policy(keep_bytes=1), lambda _: None)
    assert run_ids(store) == [] and [each.run for each in seen] == [1, 2]


def test_an_agents_clock_makes_no_step_old(store: Store) -> None:
    store.send(StreamHeader(RankInfo("run", 0, 1, 0, "host", "a", 0), KNOWN))  # started in 1970
    for sequence in range(16):
        store.send(batch(KNOWN, sequence, range(sequence * SIZE, (sequence + 1) * SIZE)))
    assert planned(store.engines.reader, Policy(keep_days=0.5)) == []
    found = run_details(store.engines.reader, 1, time.time_ns())
    assert found is not None and found.spans[0].started_ns > time.time_ns() - DAY_NS


@pytest.mark.parametrize("says", ["opening", "event", "samples", "an older run"])
def test_a_server_whose_clock_was_a_year_back_thins_no_run_of_today(
    store: Store, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Once it is right again: all that it has of the run's age is its own word, and that of the run itself."""
    now_ns = time.time_ns()
    if says == "an older run":
        store.send(opening(KNOWN, "older"))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns - 365 * DAY_NS)
        ended(store)
        told = Event("finished", now_ns if says == "event" else 0, 4_095)
        at = np.array([now_ns if says == "samples" else 0])
        samples = (Samples("host", "", at, {"step": np.array([4_095.0])}),)
        last = batch(KNOWN, 9, range(0), events=(told,))
        store.send(msgspec.structs.replace(last, samples=samples))
    with store.engines.writer.begin() as connection:
        connection.execute(update(tables.streams).values(started_ns=now_ns if says == "opening" else 0))
    assert planned(store.engines.reader, Policy(keep_days=30)) == []
    later_ns = now_ns + 31 * DAY_NS
    assert [type(each) for each in planned(store.engines.reader, Policy(keep_days=30), later_ns)] == [Thin, Trim]


def test_a_clock_that_is_set_forward_makes_nothing_old(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended(store)
    retention = Retention(store.writer, store.engines, Policy())
    before, now_ns = level_0(store), time.time_ns()
    for ahead_ns in (-365 * DAY_NS, 365 * DAY_NS, 365 * DAY_NS):
        monkeypatch.setattr(time, "time_ns", lambda ahead_ns=ahead_ns: now_ns + ahead_ns)
        retention.prune(Policy(keep_days=30), lambda _: None)
        assert level_0(store) == before
    assert [each.getMessage().partition(" hours")[0] for each in caplog.records] == [
        "the clock was set forward by 8760.0"
    ]


def test_steps_made_after_a_pause_are_as_new_as_they_are() -> None:
    old = Span(NOW - 60 * DAY_NS, NOW - 50 * DAY_NS, 0, 16_383)
    new = Span(NOW - DAY_NS, NOW, 16_384, 65_535)
    found = plan([facts(1, 0, spans=(old, new))], Policy(30), NOW, 0)
    assert [(each.step, each.level) for each in found] == [(16_384, 1)]
    again = Span(NOW - DAY_NS, NOW, 8_192, 65_535)  # from an earlier checkpoint: its steps are new, too
    assert [each.step for each in plan([facts(1, 0, spans=(old, again))], Policy(30), NOW, 0)] == [8_192]
    assert plan([facts(1, 0, spans=(new,))], Policy(30), NOW, 0) == []


def test_a_coarse_mark_is_not_carried_to_later_steps() -> None:
    coarse = facts(1, 0, ended=False, thin_step=8_192, thin_level=2)
    left = [each for each in coarse.stored if each.tile >= 8_192 // 64 // 8**each.level]
    run = facts(1, 0, ended=False, thin_step=8_192, thin_level=2, stored=tuple(left))
    assert plan([run], Policy(0.5), NOW, 0) == []  # half of it is old enough for columns of 8
    by_size = plan([run], Policy(keep_bytes=run.bytes - 5 * 10**7), NOW, run.bytes)
    assert [each.level for each in by_size] == [2] and by_size[0].bytes >= 5 * 10**7  # asked for, and no more of it
    assert by_size[0].step < 65_536 - 8_192


@pytest.mark.slow
def test_a_process_that_resumes_in_thinned_steps_keeps_its_own(store: Store, truth: dict[str, np.ndarray]) -> None:
    fill(store, truth)
    thin_all(store, level=2)
    with store.engines.writer.begin() as connection:
        connection.execute(update(tables.streams).values(last_seen_ns=time.time_ns() - 2 * DAY_NS, started_ns=0))
    ended(store, first=2_048, steps=2_048, incarnation="b")
    assert planned(store.engines.reader, Policy(keep_days=1.5)) == []


def test_limits_that_cannot_be_meant_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for amount in ("-1", "0", "nan", "inf", "1e305", "many"):
        monkeypatch.delenv("RANGEWATCH_KEEP_GB", raising=False)
        for name in ("--keep-gb", "--keep-days"):
            with pytest.raises(SystemExit) as raised:
                prune_command.main(["--db", str(tmp_path / "a.db"), f"{name}={amount}"])
            assert raised.value.code == 2 and "must be a number" in capsys.readouterr().err, amount
        monkeypatch.setenv("RANGEWATCH_KEEP_GB", amount)
        assert prune_command.main(["--db", str(tmp_path / "a.db")]) == 2, amount
        assert "RANGEWATCH_KEEP_GB: " in capsys.readouterr().err, amount


def test_a_dry_run_writes_nothing(tmp_path: Path, open_store: Callable[[str], Store]) -> None:
    db = tmp_path / "a.db"
    with hold(db):  # as by a server
        ended(open_store(f"sqlite:///{db}"))
        lines = command.prune(str(db), {"keep_days": 1e-9}, True, False, lambda _: None)
    assert "detail before step" in lines[1]
    go_back_to(f"sqlite:///{db}", "0001", "commands")
    with pytest.raises(command.Failed, match="schema 0001"):
        command.prune(str(db), {"keep_days": 1.0}, True, False, lambda _: None)


@pytest.mark.slow
def test_a_dry_run_on_postgresql_writes_nothing(empty_postgres_url: str, open_store: Callable[[str], Store]) -> None:
    with pytest.raises(command.Failed, match="no database of Rangewatch"):
        command.prune(empty_postgres_url, {"keep_days": 1e-9}, True, False, lambda _: None)
    ended(open_store(empty_postgres_url))
    lines = command.prune(empty_postgres_url, {"keep_days": 1e-9}, True, False, lambda _: None)
    assert "detail before step" in lines[1]


@pytest.mark.parametrize("dry_run", [True, False])
def test_prune_makes_no_database(dry_run: bool, tmp_path: Path) -> None:
    with pytest.raises(command.Failed, match="there is no database"):
        command.prune(str(tmp_path / "typo" / "none.db"), {}, dry_run, False, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_retention_fits_into_the_end_of_the_server() -> None:
    assert JOIN_S < CLOSE_S


def test_the_steady_clock_counts_sleep_without_a_boot_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS: its CLOCK_MONOTONIC does, and `time.monotonic` does not."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 7 if clock == time.CLOCK_MONOTONIC else 0)
    assert clocks._steady_ns() == 7
