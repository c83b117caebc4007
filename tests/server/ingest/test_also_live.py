"""Two processes that send as one rank: each is told of the other, a restart and a process that has ended are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rangewatch import wire
from rangewatch.wire.records import Event, StreamHeader
from rangewatch_server.ingest import also_live
from rangewatch_server.ingest.also_live import AlsoLive, OtherProcess
from rangewatch_server.ingest.merged_ranks import Sibling
from rangewatch_server.ingest.stream import StreamState
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
SECOND = 10**9


@pytest.fixture
def store(open_store: Callable[[str], Store], database_url: str) -> Store:
    return open_store(database_url)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(also_live, "LOOK_EVERY_NS", 0)
    monkeypatch.setattr(also_live, "SPOKEN_FOR_NS", 1)


def opened(name: str, host: str, pid: int) -> StreamHeader:
    made = opening(KNOWN, incarnation=name)
    return msgspec.structs.replace(made, info=msgspec.structs.replace(made.info, host=host, pid=pid))


def send(store: Store, name: str, sequence: int, **options: Any) -> OtherProcess | None:
    return store.send(batch(KNOWN, sequence, range(sequence, sequence + 1), incarnation=name, **options)).also_live


@pytest.mark.usefixtures("impatient")
def test_each_is_told_of_the_other_once_both_go_on(store: Store) -> None:
    store.send(opened("a", "node1", 11))
    assert send(store, "a", 0) is None
    store.send(opened("b", "node2", 22))
    assert [send(store, "b", 0), send(store, "a", 1)] == [None, None], "it may be a restart"
    assert send(store, "b", 1) == OtherProcess("node1", 11)
    assert send(store, "a", 2) == OtherProcess("node2", 22)
    assert store.send(batch(KNOWN, 2, range(2, 3), incarnation="a")).also_live is None, "a duplicate is not looked at"


@pytest.mark.usefixtures("impatient")
def test_a_restart_is_not_another_job(store: Store) -> None:
    store.send(opened("a", "node1", 11))
    send(store, "a", 0)
    store.send(opened("b", "node1", 22))
    assert [send(store, "b", sequence) for sequence in range(5)] == [None] * 5


@pytest.mark.usefixtures("impatient")
def test_what_the_watcher_of_a_dead_host_sends_is_not_another_job(store: Store) -> None:
    """However long it takes: the process is gone, and its spool is sent."""
    store.send(opened("a", "node1", 11))
    send(store, "a", 0)
    store.send(opened("b", "node2", 22))
    for sequence in range(4):
        assert send(store, "b", sequence) is None
        left = wire.encode(batch(KNOWN, sequence + 1, range(sequence + 1, sequence + 2), incarnation="a"))
        answer = store.writer.submit(wire.decode(left), left, has_ended=True).result(30)
        assert answer.contiguous == sequence + 1 and answer.also_live is None


@pytest.mark.usefixtures("impatient")
def test_one_that_has_ended_is_not_another_job(store: Store) -> None:
    store.send(opened("a", "node1", 11))
    store.send(opened("b", "node1", 22))
    send(store, "b", 0)
    send(store, "a", 0, events=(Event("finished", 1, 0),))
    assert [send(store, "b", 1), send(store, "b", 2)] == [None, None]


@pytest.mark.usefixtures("impatient")
def test_other_ranks_are_not_another_job(store: Store) -> None:
    for rank in range(2):
        store.send(opening(KNOWN, rank=rank, world_size=2))
    for sequence in range(4):
        for rank in range(2):
            sent = batch(KNOWN, sequence, range(sequence, sequence + 1), rank=rank)
            assert store.send(sent).also_live is None


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_jobs_that_send_to_two_servers_are_told_too(open_store: Callable[[str], Store], postgres_url: str) -> None:
    one, two = open_store(postgres_url), open_store(postgres_url)
    one.send(opened("a", "node1", 11))
    send(one, "a", 0)
    two.send(opened("b", "node2", 22))
    assert send(two, "b", 0) is None
    for sequence in range(1, 4):
        told = send(one, "a", sequence), send(two, "b", sequence)
    assert told == (OtherProcess("node2", 22), OtherProcess("node1", 11))


def test_it_is_left_out_of_the_answer_where_there_is_none(run: Run) -> None:
    run.post(opening(KNOWN))
    assert "also_live" not in run.post(batch(KNOWN, 0, range(1))).json()


def test_a_look_is_seldom_and_reads_nothing_without_need() -> None:
    """The connection is None: to use it would be an error."""
    looks, nothing = AlsoLive(), None

    def look(at_s: float, other_seen_s: float, state: str = "open") -> None:
        me = StreamState(1, 1, 0, "a", last_seen_ns=int(at_s * SECOND))
        both = [_sibling(1, "a", at_s), _sibling(2, "b", other_seen_s, state)]
        assert looks.look(nothing, me, both) is None  # type: ignore[arg-type]

    look(100.0, 99.0)
    look(105.0, 104.9)  # too soon after the last look
    look(111.0, 100.0)  # it spoke for a second only: its last batches
    look(140.0, 111.0)  # silent for long
    look(151.0, 150.0)  # seen for the first time again
    look(162.0, 161.0, "finished")


def _sibling(number: int, name: str, seen_s: float, state: str = "open") -> Sibling:
    return Sibling(number, 0, name, number, 0, 0, state, int(seen_s * SECOND), 1)
