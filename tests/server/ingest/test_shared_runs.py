"""Two writers on one PostgreSQL, message by message: what each remembers is true although the other writes too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from rangewatch import wire
from rangewatch_server.ingest import merged_ranks, transaction, writer
from rangewatch_server.ingest.transaction import Answer, Transaction
from rangewatch_server.query.reader import Queries
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)


@pytest.fixture
def two(postgres_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Store]:
    monkeypatch.setattr(merged_ranks, "HOLD_S", 0.0)
    monkeypatch.setattr(writer, "SYNC_S", 3_600.0)  # a server looks when it is told to
    return open_store(postgres_url), open_store(postgres_url)


def same(store: Store, start: int, stop: int, name: str = "call_count") -> None:
    """All ranks at once are the sum of each, with this server's memory and without."""
    for memory in ({"memory": store.writer.merged}, {}):
        with Queries(store.engines.reader, 15, **memory).read() as reader:
            run = reader.run(1)
            ranks = sorted(run.ranks)
            every = sum(run.slice("ranges", [rank], 0, start, stop, (name,)).columns[name] for rank in ranks)
            np.testing.assert_array_equal(run.slice("ranges", ranks, 0, start, stop, (name,)).columns[name], every)


def look(store: Store) -> None:
    """Let the server look at what others did, and make tiles, often enough for all that can be made."""
    for _ in range(12):
        store.writer._tidy_at_s = 0.0
        store.writer.work(lambda _: None).result(30)
        assert any(has_looked(store) or time.sleep(0.005) for _ in range(6_000))
        if not store.writer.memory.backlog and not store.writer.memory.unmerged:
            return


def has_looked(store: Store) -> bool:
    """Or has nothing to look for."""
    memory = store.writer.memory
    return bool(store.writer._tidy_at_s or not (memory.backlog or memory.runs_behind()))


def test_a_rank_of_the_other_server_is_not_passed_over(two: tuple[Store, Store]) -> None:
    one, other = two
    for rank in (0, 1):
        one.send(opening(KNOWN, rank=rank, world_size=3))
        one.send(batch(KNOWN, 0, range(10), rank=rank))
    look(one)
    one.send(batch(KNOWN, 1, range(10, 20), rank=0))
    other.send(opening(KNOWN, rank=2, world_size=3))
    other.send(batch(KNOWN, 0, range(100), rank=2))
    one.send(batch(KNOWN, 2, range(20, 100), rank=0))
    one.send(batch(KNOWN, 1, range(10, 100), rank=1))
    same(one, 0, 100)
    look(one)
    same(one, 0, 100)
    same(other, 0, 100)


def test_a_restart_through_the_other_server_hides_what_was_before(two: tuple[Store, Store]) -> None:
    one, other = two
    for rank in (0, 1):
        one.send(opening(KNOWN, rank=rank, world_size=2))
        one.send(batch(KNOWN, 0, range(120), rank=rank))
    look(one)
    for rank in (0, 1):
        other.send(opening(KNOWN, rank=rank, incarnation="b", world_size=2))
        other.send(batch(KNOWN, 0, range(80, 90), rank=rank, incarnation="b"))
    same(one, 0, 90)
    look(one)
    same(one, 0, 90)
    for number in range(1, 5):
        for rank in (0, 1):
            steps = range(40 + number * 50, 90 + number * 50)
            other.send(batch(KNOWN, number, steps, rank=rank, incarnation="b"))
    look(one)
    same(one, 0, 290)


def test_a_statistic_that_came_to_the_other_server_is_kept(two: tuple[Store, Store]) -> None:
    one, other = two
    fewer = tuple(each for each in KNOWN.statistics if each.name != "zero_count")
    old = msgspec.structs.replace(KNOWN, statistics=fewer)
    for rank in (0, 1):
        one.send(opening(old, rank=rank, world_size=2))
        one.send(batch(old, 0, range(65), rank=rank))
    look(one)
    for rank in (0, 1):
        other.send(opening(KNOWN, rank=rank, incarnation="b", world_size=2))
    for rank in (0, 1):
        one.send(batch(KNOWN, 0, range(128, 256), {"zero_count": 5.0}, rank=rank, incarnation="b"))
    look(one)
    same(one, 128, 256, "zero_count")
    with one.queries.read() as reader:
        block = reader.run(1).slice("ranges", [0, 1], 0, 128, 256, ("zero_count",))
        assert (block.columns["zero_count"] == 10).all()


def together(store: Store, messages: list[object]) -> list[Answer]:
    """All in one transaction."""
    queued = threading.Event()
    store.writer.work(lambda _: queued.wait(30))
    bodies = [wire.encode(message) for message in messages]
    waits = [store.writer.submit(wire.decode(body), body) for body in bodies]
    queued.set()
    return [each.result(30) for each in waits]


def test_late_rows_that_had_to_wait_survive_a_rollback(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is read back takes what lies below its frontier for folded: it must have been."""
    monkeypatch.setattr(transaction, "FOLD_S", -1.0)
    ranks = range(1, 6)
    for rank in ranks:
        store.send(opening(KNOWN, rank=rank, world_size=6))
        store.send(batch(KNOWN, 0, range(64, 129), rank=rank))
    look(store)
    drain_backlog = Transaction.drain_backlog

    def fails(_: Transaction) -> None:
        monkeypatch.setattr(Transaction, "drain_backlog", drain_backlog)
        raise OperationalError("COMMIT", {}, Exception("database is locked"))

    monkeypatch.setattr(Transaction, "drain_backlog", fails)
    together(store, [batch(KNOWN, 1, range(10), rank=rank) for rank in ranks])
    look(store)
    for rank in ranks:
        store.send(batch(KNOWN, 2, range(129, 193), rank=rank))
    look(store)
    with store.queries.read() as reader:
        run = reader.run(1)
        for rank in ranks:
            assert (run.slice("ranges", [rank], 0, 0, 10, ("call_count",)).columns["call_count"] == 1).all()
