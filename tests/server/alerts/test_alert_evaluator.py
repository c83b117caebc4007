"""Looks at a run, one by one: what opens, what changes, what is over; two servers open one alert."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from rangewatch_server.alerts import evaluator
from rangewatch_server.alerts.config import Config, Webhook
from rangewatch_server.alerts.evaluator import (
    GONE_AFTER,
    RECENT_NS,
    UNKNOWN,
    Evaluator,
    Open,
    compare,
    identity,
    unknown,
)
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.maintenance.retention.runs_delete import mark_deleted, remove_rows
from rangewatch_server.rules import Finding
from rangewatch_server.rules.diagnosis import LATE, Diagnosis
from rangewatch_server.store import alerts, tables
from tests.server.maintenance.test_retention_faults import wait_until
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(1)
TARGET = Webhook(name="ops", url="http://192.0.2.1/", severity="warning")


def found(summary: str = "it is wrong", severity: str = "critical", **more: Any) -> Finding:
    return Finding(rule="first_nonfinite", severity=severity, summary=summary, **more)


class Rules:
    """What the rules find is set by the test; all else is real."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.findings, self.failed = store, [found()], dict[str, str]()
        monkeypatch.setattr(evaluator, "diagnose", lambda *_, **__: Diagnosis(0, 10, tuple(self.findings), self.failed))
        store.send(opening(KNOWN))
        store.send(batch(KNOWN, 0, range(10)))

    def server(self) -> Evaluator:
        return Evaluator(
            self.store.queries, self.store.writer, Config(webhook=(TARGET,)), Metrics(), lambda: None, share=1e6
        )

    def rows(self, is_open: bool | None = None) -> list[Any]:
        with self.store.queries.read() as reader:
            return alerts.listed(reader.connection, 1, is_open=is_open, before=None, limit=100)

    def sent(self) -> list[tuple[str, str]]:
        with self.store.queries.read() as reader:
            waiting = alerts.waiting(reader.connection, 2**62, 100, None, [])
            return [(each.target, each.what) for each in waiting]


BOTH = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def store(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(sqlite_url)


@pytest.fixture
def rules(store: Store, monkeypatch: pytest.MonkeyPatch) -> Rules:
    return Rules(store, monkeypatch)


def test_a_finding_is_one_alert_until_it_has_been_gone_for_some_looks(rules: Rules) -> None:
    server = rules.server()
    for step in range(3):
        rules.findings = [found(f"it is wrong at step {step}", step=step)]
        server.evaluate(1)
    (row,) = rules.rows(is_open=True)
    rules.findings = []
    for _ in range(GONE_AFTER - 1):
        server.evaluate(1)
    assert [each.id for each in rules.rows(is_open=True)] == [row.id]
    server.evaluate(1)
    assert rules.rows(is_open=True) == []
    (over,) = rules.rows(is_open=False)
    assert (over.id, over.resolved_step) == (row.id, 9)
    assert rules.sent() == [("ops", "opened"), ("ops", "resolved")]
    rules.findings = [found()]
    server.evaluate(1)
    assert len(rules.rows(is_open=True)) == 1


def test_what_a_rule_that_failed_found_before_is_not_over(rules: Rules) -> None:
    server = rules.server()
    server.evaluate(1)
    rules.findings, rules.failed = [], {"first_nonfinite": "ValueError: x"}
    for _ in range(GONE_AFTER + 1):
        server.evaluate(1)
    assert {each.rule for each in rules.rows(is_open=True)} == {"first_nonfinite", UNKNOWN}
    rules.failed = {}
    for _ in range(GONE_AFTER):
        server.evaluate(1)
    assert rules.rows(is_open=True) == []


def test_rules_that_could_not_be_applied_are_an_alert_of_their_own(rules: Rules) -> None:
    server = rules.server()
    rules.findings, rules.failed = [], {"straggler": LATE, "hang": LATE}
    server.evaluate(1)
    (row,) = rules.rows(is_open=True)
    assert (row.rule, row.severity) == (UNKNOWN, "warning")
    assert "straggler, hang" in unknown(rules.failed)[0].summary
    rules.failed = {}
    for _ in range(GONE_AFTER):
        server.evaluate(1)
    assert rules.rows(is_open=True) == []


@BOTH
def test_two_servers_open_one_alert_and_a_later_one_knows_it(
    database_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules(open_store(database_url), monkeypatch)
    one, other = rules.server(), rules.server()
    rules.findings = []
    one.evaluate(1)
    other.evaluate(1)
    rules.findings = [found()]
    one.evaluate(1)
    other.evaluate(1)
    rules.server().evaluate(1)
    assert len(rules.rows()) == 1
    assert rules.sent() == [("ops", "opened")]


@BOTH
def test_runs_that_ended_while_no_server_was_there_are_looked_at_once(
    database_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get no news, so nobody else asks for it."""
    store = open_store(database_url)
    rules = Rules(store, monkeypatch)
    store.send(opening(KNOWN, "long ago"))
    with store.engines.writer.begin() as connection:
        mine = tables.streams.c.run_id == 2
        connection.execute(tables.streams.update().where(mine).values(last_seen_ns=time.time_ns() - 10 * RECENT_NS))
    monkeypatch.setattr(evaluator, "RESUME_S", 0.0)
    monkeypatch.setattr(evaluator, "EVERY_S", 0.0)
    first = rules.server()
    first.evaluate(1)
    assert unexamined(store) == [1], "while a rank speaks what is known of a run is not whole"
    store.queries.live_ns = 0
    rules.findings = [found(), found(tensor="a")]
    looked: list[int] = []
    server = rules.server()
    server.evaluate = lambda run_id: looked.append(run_id) or Evaluator.evaluate(server, run_id)  # type: ignore[method-assign,func-returns-value]
    server.start()
    wait_until(lambda: len(rules.rows(is_open=True)) == 2 and unexamined(store) == [])
    server.stop()
    assert set(looked) == {1}
    again = rules.server()
    again._resume()
    assert again._due == {}
    store.send(batch(KNOWN, 1, range(10, 20)))
    assert unexamined(store) == [1]
    remove_rows(again.jobs, 1)
    with store.engines.reader.connect() as connection:
        assert connection.execute(select(func.count()).select_from(tables.examined)).scalar() == 0


def unexamined(store: Store) -> list[int]:
    with store.queries.read() as reader:
        return alerts.unexamined(reader.connection, time.time_ns() - RECENT_NS, 10)


def test_a_look_waits_until_the_ranks_are_merged_and_not_for_ever(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start over a thousand: read one by one they cost two seconds of processor."""
    server, now_s = rules.server(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rules.store.writer.memory.unmerged.add(1)
    assert server._is_put_off(1) and server._due == {1: now_s + evaluator.CATCH_UP_S}
    now_s += evaluator.MOST_CATCH_UP_S - 0.1
    assert server._is_put_off(1)
    now_s += 0.2
    assert not server._is_put_off(1)
    rules.store.writer.memory.unmerged.clear()
    assert not server._is_put_off(1) and not server._put_off_s


def test_a_delivery_is_one_servers_to_send(rules: Rules) -> None:
    server = rules.server()
    server.evaluate(1)
    with rules.store.queries.read() as reader:
        (due,) = alerts.waiting(reader.connection, 2**62, 100, "ops", [])

    def claim() -> bool:
        return server.jobs(lambda connection: alerts.claimed(connection, due.id, due.next_ns, due.next_ns + 1))

    assert (claim(), claim()) == (True, False)


def test_what_is_due_of_a_run_that_was_deleted_has_no_run(rules: Rules) -> None:
    """Or it would be sent to people whom its page answers 404."""
    server = rules.server()
    server.evaluate(1)

    def run_of_due() -> str | None:
        with rules.store.queries.read() as reader:
            (due,) = alerts.waiting(reader.connection, 2**62, 100, "ops", [])
            run: str | None = due.run
            return run

    assert run_of_due() == "run"
    server.jobs(lambda connection: mark_deleted(connection, 1), forgets=True)
    assert run_of_due() is None


def test_a_worse_severity_is_written_at_once(rules: Rules) -> None:
    server = rules.server()
    rules.findings = [found(severity="warning")]
    server.evaluate(1)
    rules.findings = [found(severity="warning", evidence=("other numbers",))]
    server.evaluate(1)
    rules.findings = [found(severity="critical")]
    server.evaluate(1)
    (row,) = rules.rows()
    assert row.severity == "critical"


def test_less_than_a_target_wants_is_not_sent(rules: Rules) -> None:
    rules.findings = [found(severity="info")]
    rules.server().evaluate(1)
    assert len(rules.rows()) == 1
    assert rules.sent() == []


@BOTH
def test_a_deleted_run_leaves_no_alert(
    database_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules(open_store(database_url), monkeypatch)
    server = rules.server()
    server.evaluate(1)
    server.jobs(lambda connection: mark_deleted(connection, 1), forgets=True)
    assert server.evaluate(1) is None
    remove_rows(server.jobs, 1)
    with rules.store.queries.read() as reader:
        assert alerts.standing(reader.connection, 1) == []
        assert alerts.waiting(reader.connection, 2**62, 100, None, []) == []


def test_only_so_many_that_are_over_are_kept(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "MAX_RESOLVED", 2)
    server = rules.server()
    for number in range(5):
        rules.findings = [found(subject=str(number))]
        for _ in range(GONE_AFTER + 1):
            server.evaluate(1)
    rules.findings = []
    for _ in range(GONE_AFTER):
        server.evaluate(1)
    assert len(rules.rows()) == 2


def test_what_is_the_same_finding() -> None:
    first = found(rank=1, tensor="a", kind="output", step=5)
    assert identity(first) == identity(found("otherwise", severity="info", rank=1, tensor="a", kind="output", step=9))
    for other in (found(rank=2, tensor="a"), found(rank=1, tensor="b"), found(rank=1, tensor="a", kind="grad")):
        assert identity(first) != identity(other)


def test_a_look_counts_and_says_what_changed() -> None:
    standing = {identity(found()): Open(1, found(), missing=1)}
    change = compare(standing, [found(), found(tensor="new"), found(tensor="new")])
    assert (len(change.opened), change.changed, change.resolved) == (1, (), ())
    assert standing[identity(found())].missing == 0
    assert compare({}, []).is_nothing


def test_a_finding_of_no_place_is_kept_too(rules: Rules) -> None:
    rules.findings = [found(facts={"x": float(np.float64(1.5))})]
    rules.server().evaluate(1)
    assert rules.rows()[0].step is None
