"""All ranks read at once are what reading every rank and merging gives, whatever came when, and after any restart."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, select, update

from rangewatch import wire
from rangewatch.wire.records import KINDS, Batch, StreamHeader
from rangewatch_server.ingest import merged_ranks, transaction, writer
from rangewatch_server.ingest import merged_ranks as merged_catch_up
from rangewatch_server.ingest.accumulators import Accumulator, RowIndex, kind_of_row, rank_row
from rangewatch_server.ingest.merged_ranks import ALL_RANKS
from rangewatch_server.ingest.transaction import Transaction
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import AMAX_STEP, NONFINITE_STEP, SERIES_PART
from rangewatch_server.query.reader import EXACT_RANKS, Queries, RunReader
from rangewatch_server.query.slices import join
from rangewatch_server.store import tables
from rangewatch_server.store.rows import union
from rangewatch_server.views import run_list
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(5, kinds=("output", "grad", "exp_avg_sq"))
WANTED = {
    "ranges": ("call_count", "numel", "amax", "nan_count", "inf_count", AMAX_STEP, NONFINITE_STEP),
    "series": ("count", "nonfinite_count", "min", "max"),  # sums of few ranks are read from every rank
    "summary": ("observed", "bits", "nan_count", "inf_count"),
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that goes back holds nothing up."""
    monkeypatch.setattr(merged_catch_up, "HOLD_S", 0.0)


def expected(run: RunReader, part: str, level: int, start: int, stop: int) -> Any:
    names = run.names()
    pieces = [each for rank in run.ranks for each in run.own_pieces(rank, part, level, start, stop, WANTED[part])]
    rows = union([each.rows for each in pieces])
    return join(pieces, level, start, stop, WANTED[part], rows, names.fill[part], names.rules[part])


def check(queries: Queries) -> None:
    with queries.read() as reader:
        run = reader.run(1)
        if run.last_step is None:
            return
        first, stop = run.first_step, run.last_step + 1
        each_rank = [run.by_rank([rank], 1, first, stop, ("inf_count",)).columns["inf_count"] for rank in run.ranks]
        found = run.by_rank(sorted(run.ranks), 1, first, stop, ("inf_count",))
        np.testing.assert_array_equal(found.columns["inf_count"], np.concatenate(each_rank))
        for part in WANTED:
            for level in range(4):
                for low, high in ((first, stop), (first + 3, stop - 5), ((first + stop) // 2, stop)):
                    if low < high:
                        same(run, part, level, low, high)


def same(run: RunReader, part: str, level: int, low: int, high: int) -> None:
    wanted = expected(run, part, level, low, high)
    found = run.slice(part, sorted(run.ranks), level, low, high, WANTED[part], wanted.rows)
    assert found.first == wanted.first
    for name in WANTED[part]:
        np.testing.assert_array_equal(found.columns[name], wanted.columns[name], err_msg=f"{part} {level} {name}")


def settle(store: Store) -> None:
    """Wait until nothing is left to be made into tiles."""
    for _ in range(3_000):
        store.writer.work(lambda _: None).result(30)
        memory = store.writer.memory
        if not memory.backlog and not memory.unmerged:
            return
        time.sleep(0.01)
    raise AssertionError("tiles are never done")


def values(draw: random.Random, steps: int) -> dict[str, Any]:
    shape = (len(KNOWN.tensors), steps)
    made = np.array([[draw.choice([0.5, 1.0, 3.0, 100.0, 60000.0]) for _ in range(shape[1])] for _ in range(shape[0])])
    bad = np.array([[float(draw.random() < 0.02) for _ in range(shape[1])] for _ in range(shape[0])])
    return {"amax": made, "inf_count": bad, "nan_count": bad * float(draw.random() < 0.3)}


class Rank:
    """A simulated rank: its incarnation, what it sent, and where it stands."""

    def __init__(self, rank: int) -> None:
        self.rank, self.life, self.sequence, self.step = rank, 0, 0, 0

    def begin(self, store: Store, step: int) -> None:
        self.life, self.sequence, self.step = self.life + 1, 0, step
        store.send(opening(KNOWN, rank=self.rank, incarnation=f"life{self.life}", world_size=3))

    def send(self, store: Store, draw: random.Random, *, back: bool) -> None:
        count = draw.choice([1, 7, 40, 64, 130])
        start = max(0, self.step - 30) if back else self.step
        steps = range(start, start + count)
        loss = {"loss": [draw.choice([1.0, 2.5, float("nan")]) for _ in steps]}
        store.send(
            batch(
                KNOWN, self.sequence, steps, values(draw, count), rank=self.rank, incarnation=f"life{self.life}",
                series=loss,
            )
        )  # fmt: skip
        self.sequence += 1
        self.step = max(self.step, steps[-1] + 1)


def test_rows_of_the_summary_stay_what_they_were_in_stored_tiles() -> None:
    """The first seven kinds have the rows that they had when there were no others."""
    kinds, ranks = np.arange(len(KINDS)), np.array([0, 1, 1023, 2**31 - 1])
    rows = rank_row(ranks[:, np.newaxis], kinds)
    np.testing.assert_array_equal(rows[:, :7], 7 * ranks[:, np.newaxis] + kinds[:7])
    assert len(np.unique(rows)) == rows.size
    np.testing.assert_array_equal(kind_of_row(rows), np.broadcast_to(kinds, rows.shape))


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_all_ranks_are_the_merge_of_every_rank(
    database_url: str, open_store: Callable[[str], Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    if seed % 2:  # nearly every tile has to wait for another transaction
        monkeypatch.setattr(transaction, "FOLD_S", 0.002)
    store = open_store(database_url)
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        rank.begin(store, 0)
    for turn in range(26):
        rank = draw.choice(ranks)
        if draw.random() < 0.06:
            rank.begin(store, draw.randrange(0, rank.step + 1))
        rank.send(store, draw, back=draw.random() < 0.1)
        if turn % 8 == 7:
            check(Queries(store.engines.reader, 15, store.writer.merged))
            check(Queries(store.engines.reader, 15))
        if turn == 14:  # the server starts again
            store.close()
            store = open_store(database_url)
    settle(store)
    check(Queries(store.engines.reader, 15, store.writer.merged))


def test_memory_and_tiles_hold_everything_once_the_ranks_have_passed(store: Store) -> None:
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
    for number in range(10):
        for rank in range(3):
            store.send(batch(KNOWN, number, range(number * 64, number * 64 + 64), rank=rank, series={"loss": 1.0}))
    settle(store)
    with Queries(store.engines.reader, 15, store.writer.merged).read() as reader:
        run = reader.run(1)
        assert sorted(run.ranks) == [0, 1, 2]
        assert run.merged.frontier == 576
        assert run.merged.stream.rank == ALL_RANKS
        snapshot = store.writer.merged(1, "ranges", run.merged.version, 0, 640, ("amax",))
        assert snapshot is not None
        assert snapshot.fed == {stream.id for rank in run.ranks.values() for stream in rank.streams}
        reads: list[int] = []
        run.own_pieces = lambda *each: reads.append(each[0]) or []  # type: ignore[method-assign]
        block = run.slice("ranges", [0, 1, 2], 0, 0, 640, ("call_count",))
        assert block.columns["call_count"].tolist() == [[3.0] * 640] * 5
        assert reads == []  # no rank was read


@pytest.mark.slow
@pytest.mark.parametrize("size", [*(pytest.param(each, marks=pytest.mark.slow) for each in (100, 462)), 700])
def test_ranks_that_report_one_after_another(store: Store, size: int) -> None:
    """Each later rank fills in steps that are merged already, and passes the frontier in the same message."""
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
        for number, start in enumerate(range(0, 2_286, size)):
            store.send(batch(KNOWN, number, range(start, min(start + size, 2_286)), {"amax": rank + 1.0}, rank=rank))
        check(Queries(store.engines.reader, 15, store.writer.merged))
    settle(store)
    check(Queries(store.engines.reader, 15))


@pytest.mark.slow
@pytest.mark.parametrize("size", [400, pytest.param(1_000, marks=pytest.mark.slow)])
def test_nothing_is_missing_while_tiles_are_made(store: Store, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read without a pause, all ranks never hold less than each does, whatever moves to tiles meanwhile."""
    monkeypatch.setattr(transaction, "FOLD_S", 0.002)
    queries = Queries(store.engines.reader, 15, store.writer.merged)
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
    ended, missing = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            with queries.read() as reader:
                run = reader.run(1)
                stop = (run.last_step or 0) + 1
                every = [run.own_pieces(rank, "ranges", 1, 0, stop, ("call_count",)) for rank in run.ranks]
                least = sum(float(each.columns["call_count"].sum()) for pieces in every for each in pieces)
                found = float(run.slice("ranges", [0, 1, 2], 1, 0, stop, ("call_count",)).columns["call_count"].sum())
                if found < least:
                    missing.append((run.merged.version, run.merged.frontier, least - found))

    reading = threading.Thread(target=read)
    reading.start()
    for rank in (0, 1, 2):  # each after the one before, so that its steps are read back
        for number in range(4):
            store.send(batch(KNOWN, number, range(number * size, number * size + size), rank=rank))
    settle(store)
    ended.set()
    reading.join(30)
    assert missing == []
    check(queries)


def test_a_rank_that_is_silent_does_not_hold_up_the_others_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        store.send(opening(KNOWN, rank=rank, world_size=2))
    store.send(batch(KNOWN, 0, range(10), rank=1))
    monkeypatch.setattr(merged_ranks, "ACTIVE_NS", 0)
    for number in range(5):
        store.send(batch(KNOWN, number, range(number * 64, number * 64 + 64), rank=0))
    settle(store)
    store.send(batch(KNOWN, 1, range(10, 200), {"amax": 7.0}, rank=1))  # it was only slow
    settle(store)
    queries = Queries(store.engines.reader, 15, store.writer.merged)
    check(queries)
    with queries.read() as reader:
        assert reader.run(1).merged.frontier >= 256


def at_once_in_the_writer(store: Store, messages: Sequence[StreamHeader | Batch]) -> None:
    """All in one transaction: the writer is kept waiting until they are queued."""
    queued = threading.Event()
    waits = store.writer.work(lambda _: queued.wait(30))
    sent = [(wire.decode(body), body) for body in map(wire.encode, messages)]
    futures = [store.writer.submit(*each) for each in sent]
    queued.set()
    for future in (waits, *futures):
        future.result(30)


def test_late_rows_and_a_restart_in_one_transaction(store: Store) -> None:
    """What came late for tiles that stay is not forgotten with what the restart hides."""
    draw = random.Random(3)
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
    for rank in range(2):
        store.send(batch(KNOWN, 0, range(200), values(draw, 200), rank=rank))
    settle(store)
    late, again = (
        batch(KNOWN, 0, range(first, stop), values(draw, stop - first), rank=rank, incarnation=life)
        for rank, life, first, stop in ((2, "a", 0, 70), (1, "b", 195, 220))
    )
    later = batch(KNOWN, 1, range(70, 100), values(draw, 30), rank=2)
    at_once_in_the_writer(store, [late, opening(KNOWN, rank=1, incarnation="b", world_size=3), again, later])
    check(Queries(store.engines.reader, 15, store.writer.merged))
    settle(store)
    check(Queries(store.engines.reader, 15, store.writer.merged))
    check(Queries(store.engines.reader, 15))


@pytest.mark.parametrize("level", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_where_merged_tiles_are_damaged_the_ranks_own_are_read(store: Store, level: int) -> None:
    draw = random.Random(level)
    for rank in range(3):
        store.send(opening(KNOWN, rank=rank, world_size=3))
    for number in range(9):
        for rank in range(3):
            steps = range(number * 100, number * 100 + 100)
            store.send(batch(KNOWN, number, steps, values(draw, 100), rank=rank, series={"loss": 1.0}))
    settle(store)

    def damage(connection: Any) -> None:
        merged = select(tables.streams.c.id).where(tables.streams.c.rank == ALL_RANKS)
        here = tables.tiles.c.stream_id.in_(merged) & (tables.tiles.c.level <= level) & (tables.tiles.c.tile % 3 == 0)
        connection.execute(update(tables.tiles).where(here).values(payload=b"RWT1 and no more"))

    store.writer.work(damage).result(30)
    queries = Queries(store.engines.reader, 15, store.writer.merged)
    check(queries)
    with queries.read() as reader:
        run = reader.run(1)
        assert run is not None and run.merged.frontier == 896
        run.slice("summary", [0, 1, 2], 0, 0, 900, WANTED["summary"])
        by_rank = run.by_rank([0, 1, 2], 0, 0, 900, ["observed"])
        assert by_rank.columns["observed"].any(axis=0).all()
        assert not run.damage, "every step is there"


def test_the_history_that_a_restart_hides_is_not_read_from_merged_ranks(store: Store) -> None:
    draw = random.Random(1)
    for rank, life in ((0, "a"), (1, "a"), (1, "b"), (0, "b")):
        store.send(opening(KNOWN, rank=rank, incarnation=life, world_size=2))
        first = 100 if life == "b" else 0
        store.send(batch(KNOWN, 0, range(first, 300), values(draw, 300 - first), rank=rank, incarnation=life))
    settle(store)
    with Queries(store.engines.reader, 15, store.writer.merged).read() as reader:
        run = reader.run(1)
        assert run is not None and run.merged.frontier == 64  # memory has the rest
        run.as_of(1)
        for part in WANTED:
            same(run, part, 0, 0, 300)
            same(run, part, 2, 5, 280)


def test_after_a_start_each_rank_is_looked_at_once_and_not_beside_every_other(
    store: Store, open_store: Callable[[str], Store], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand that was as dear as all else: half a million looks. On PostgreSQL another server may have those
    that this one has not heard of, so that it reads them one by one instead.
    """
    ranks = 40
    store.send_all([opening(KNOWN, rank=rank, world_size=ranks) for rank in range(ranks)])
    store.send_all([batch(KNOWN, 0, range(20), rank=rank) for rank in range(ranks)])
    settle(store)
    store.close()
    looks: list[int] = []
    own = merged_catch_up.CatchUp._is_near
    monkeypatch.setattr(merged_catch_up.CatchUp, "_is_near", lambda *given: looks.append(1) or own(*given))
    monkeypatch.setattr(transaction, "FOLD_S", 60.0)
    again = open_store(database_url)
    again.send(batch(KNOWN, 1, range(20, 24), rank=7))
    settle(again)
    assert len(looks) < 2 * ranks
    assert len(looks) >= ranks or again.writer.engine.dialect.name == "postgresql"
    check(again.queries)


def test_a_thousand_ranks_that_nobody_has_merged_are_read_in_a_few_queries(
    store: Store, open_store: Callable[[str], Store], database_url: str
) -> None:
    """As after a start: one by one they took two queries each for every figure."""
    ranks, draw = EXACT_RANKS + 6, random.Random(5)  # sums of fewer are read from every rank
    store.send_all([opening(KNOWN, rank=rank, world_size=ranks) for rank in range(ranks)])
    for number, (start, stop, size) in enumerate(((0, 20, ranks), (13, 30, ranks // 2))):
        amax = [{"amax": values(draw, stop - start)["amax"]} for _ in range(size)]
        store.send_all([batch(KNOWN, number, range(start, stop), amax[rank], rank=rank) for rank in range(size)])
    store.close()
    again = open_store(database_url)
    statements: list[str] = []
    event.listen(again.engines.reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with again.queries.read() as reader:
        assert run_list.page(reader, run_list.Listing())["runs"][0]["ranks_reporting"] == ranks
    assert len(statements) < ranks
    check(again.queries)


def test_a_start_reads_no_stream_whose_rows_say_that_it_has_nothing_for_tiles(
    store: Store, open_store: Callable[[str], Store], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of live ranks all have batches: to read a thousand was most of what a start took."""
    store.send_all([opening(KNOWN, rank=rank, world_size=3) for rank in range(3)])
    store.send_all([batch(KNOWN, 0, range(70), rank=rank) for rank in range(2)])
    settle(store)
    monkeypatch.setattr(writer, "EXAMINE_AFTER_S", 600.0)
    monkeypatch.setattr(Transaction, "_fold", lambda *_: [])  # as where making tiles has failed
    store.send(batch(KNOWN, 0, range(70), rank=2))  # a whole span
    store.send(batch(KNOWN, 1, range(70, 75), {"amax": 9.0}, rank=0))
    store.send(batch(KNOWN, 1, range(20, 30), {"amax": 9.0}, rank=1))  # late: only the batch says that it is for a tile
    store.close()
    monkeypatch.undo()
    monkeypatch.setattr(writer, "EXAMINE_AFTER_S", 600.0)
    again = open_store(database_url)
    settle(again)
    memory = again.writer.memory
    assert [rank for _, rank, _ in memory.streams] == [2]
    assert sorted(rank for _, rank, _ in memory.unexamined.values()) == [0, 1]
    again.writer.work(lambda _: memory.examine()).result(30)
    settle(again)
    assert not memory.unexamined
    check(again.queries)
    with again.queries.read() as reader:
        amax = reader.run(1).slice("ranges", [1], 0, 0, 70, ("amax",)).columns["amax"]
    assert set(np.flatnonzero((amax == 9.0).all(axis=0))) == set(range(20, 30))


def test_a_tile_has_every_column_though_one_says_nothing() -> None:
    """What is read from tiles has constants without strides, which are not kept; a restore asks for all columns."""
    fill, rules = pyramid.identities(SERIES_PART, ()), pyramid.merge_rules(SERIES_PART, ())
    tile = Accumulator(RowIndex(), fill, rules)
    none = np.broadcast_to(np.float64(0), (1, 4))
    tile.merge(np.array([0]), np.arange(4), {"count": np.ones((1, 4)), "nonfinite_count": none})
    found = tile.block(SERIES_PART, 0)
    assert set(found.columns) == {name for name in fill if name != "last"}
    assert found.columns["nonfinite_count"].tolist() == [[0.0] * 64]
    assert set(tile.block(SERIES_PART, 0, ["count"]).columns) == {"count"}
