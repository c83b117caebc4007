"""Batches decoded and merged together are what decoding and merging them one by one gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, RangeRows, Samples, SeriesRows
from rangewatch_server.ingest.accumulators import Accumulators, laid_over
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.slices import nbytes_of
from rangewatch_server.store.rows import Raw, raws_of, raws_of_alike
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

QUICK = settings(max_examples=60, deadline=None)
SERIES = {"loss": 0, "lr": 1, "loss_scale": 2}
ORDINALS = np.array([3, 1, 0, 7], np.int64)  # of the catalogue's tensors: not in order

numbers = st.sampled_from([0.0, -0.0, 1.0, 0.1, 65_504.0, 3e300, float("nan"), float("inf"), -2.5])
counts = st.sampled_from([0.0, 1.0, 3.0, 70_000.0])


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Few layouts, so that some of a dozen are alike."""
    first, count = draw(st.sampled_from([0, 5])), draw(st.sampled_from([1, 1, 2, 3]))
    steps = np.arange(first, first + count)
    ranges = None
    if draw(st.booleans()):
        tensors = np.arange(draw(st.sampled_from([1, 4])))
        shape = len(tensors), count
        columns: dict[str, Any] = {"call_count": np.ones(shape)}
        for name in draw(st.sets(st.sampled_from(["amax", "nan_count", "sum_sq", "unknown"]))):
            values = numbers if name == "amax" else counts
            is_one = draw(st.booleans())
            columns[name] = np.array(
                [[draw(values)] * shape[1]] * shape[0] if is_one
                else [[draw(values) for _ in range(shape[1])] for _ in range(shape[0])]
            )  # fmt: skip
        if draw(st.booleans()):
            whole = draw(st.sampled_from([0, 7])) + np.arange(shape[0] * shape[1])
            columns["numel"] = whole.reshape(shape)  # sent as a range
        ranges = RangeRows(steps, tensors, columns)
    series = tuple(
        SeriesRows(name, (at := steps if draw(st.booleans()) else steps[:1]), np.array([draw(numbers) for _ in at]))
        for name in draw(st.sets(st.sampled_from(list(SERIES))))
    )
    samples = (Samples("gpu", "", np.array([1]), {"x": np.ones(1)}),) if draw(st.booleans()) else ()
    return Batch("run", draw(st.integers(0, 3)), "a", draw(st.integers(0, 9)), "c", ranges, series, samples=samples)


def same(found: Raw, wanted: Raw) -> None:
    assert found.part == wanted.part and list(found.columns) == list(wanted.columns)
    np.testing.assert_array_equal(found.steps, wanted.steps)
    np.testing.assert_array_equal(found.rows, wanted.rows)
    for name, values in wanted.columns.items():
        assert found.columns[name].dtype == values.dtype and found.columns[name].shape == values.shape
        assert found.columns[name].tobytes() == values.tobytes(), name


def alikes(bodies: list[bytes]) -> Iterator[wire.Alike]:
    for portion in wire.decode_alike(bodies):
        yield from portion.alikes


@QUICK
@given(st.lists(batches(), max_size=12), st.data())
def test_rows_of_batches_decoded_together_are_those_of_each(sent: list[Batch], data: st.DataObject) -> None:
    """Bit by bit; a body that is refused, and an opening, are left to `decode`."""
    bodies: list[Any] = [wire.encode(each) for each in sent]
    bad = [wire.encode(opening(catalogue(2))), b"", b"RW?", wire.encode(batch(catalogue(2), 0, range(3)))[:-9]]
    for each in bad:
        bodies.insert(data.draw(st.integers(0, len(bodies))), each)
    found: dict[int, list[Raw]] = {}
    for alike in alikes(bodies):
        assert alike.places == sorted(alike.places)
        raws = raws_of_alike(alike, ORDINALS, statistics.ALL, SERIES)
        assert [nbytes_of(each) for each in raws] == [nbytes_of(raws[0])] * len(raws)
        found |= dict(zip(alike.places, raws, strict=True))
    assert len(found) == len(sent)
    for place, body in enumerate(bodies):
        if body in bad:
            assert place not in found
            continue
        decoded = wire.decode(body, rows_only=True)
        assert isinstance(decoded, Batch)
        wanted = raws_of(decoded, ORDINALS, statistics.ALL, SERIES)
        for each, other in zip(found[place], wanted, strict=True):
            same(each, other)


def test_columns_of_whole_numbers_that_count_up_are_each_batchs_own() -> None:
    numel = [start + np.arange(4).reshape(2, 2) for start in (0, 7, 0)]
    rows = [RangeRows(np.arange(2), np.arange(2), {"call_count": np.ones((2, 2)), "numel": each}) for each in numel]
    sent = [wire.encode(Batch("run", rank, "a", 0, "c", each)) for rank, each in enumerate(rows)]
    found = {
        place: values
        for alike in alikes(sent)
        for place, values in zip(alike.places, alike.columns["numel"].tolist(), strict=True)
    }
    assert found == {place: each.tolist() for place, each in enumerate(numel)}


def test_what_is_made_of_small_bodies_that_stand_for_much_is_bounded() -> None:
    """4,096 steps of 256 series that do not change are 48 MB of columns, and a message of a few kilobytes."""
    steps, values = np.arange(4096), np.ones(4096)
    series = tuple(SeriesRows(f"s{number}", steps, values) for number in range(256))
    body = wire.encode(Batch("run", 0, "a", 0, "c", None, series))
    assert len(body) < 10_000
    portions = [
        (portion.stop, [alike.places for alike in portion.alikes])
        for portion in wire.decode_alike([body, b"RW?", body])
    ]
    assert portions == [(1, [[0]]), (3, [[2]]), (3, [])]


def test_a_header_that_does_not_say_that_it_is_a_batchs_is_left_to_decode() -> None:
    body = wire.encode(Batch("run", 0, "a", 0, "c", None, (SeriesRows("loss", np.arange(2), np.ones(2)),)))
    damaged = zstandard.compress(zstandard.decompress(body).replace(b"message", b"massage"))
    with pytest.raises(wire.WireError, match="missing required field `message`"):
        wire.decode(damaged, rows_only=True)
    assert [alike.places for alike in alikes([body, damaged])] == [[0]]


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_rows_laid_over_one_another_first_are_the_same(seed: int, many: int, width: int) -> None:
    random = np.random.default_rng(seed)
    rules = pyramid.merge_rules(RANGES, statistics.ALL)
    fill = pyramid.identities(RANGES, statistics.ALL)
    names = list(fill)[:9]
    steps, rows = np.arange(60, 60 + width), np.arange(3)

    def column(name: str) -> Any:
        kind = random.integers(3)
        values = random.integers(0, 200, (3, width))
        if kind == 0:
            return np.broadcast_to(np.float64(values[0, 0]), values.shape)
        dtype = (np.float64, np.uint8, np.float32)[random.integers(3)]
        largest = 0 if dtype is np.uint8 else 16_777_215 - 200  # the sum of two has no place in their dtype
        return (largest + values).astype(dtype)

    raws = [
        Raw(RANGES, steps, rows, {name: column(name) for name in names if random.random() < 0.8}) for _ in range(many)
    ]
    one_by_one, together = (Accumulators({RANGES: fill}, {RANGES: rules}) for _ in range(2))
    for raw in raws:
        one_by_one.lay(raw)
    together.lay(laid_over(raws, rules))
    assert one_by_one.tiles.keys() == together.tiles.keys()
    for key, tile in one_by_one.tiles.items():
        for name in tile.columns.keys() | together.tiles[key].columns.keys():
            wanted = tile.columns.get(name, fill[name])
            np.testing.assert_array_equal(together.tiles[key].columns.get(name, fill[name]), wanted, err_msg=name)


RANKS = 6


@pytest.fixture
def just_started(store: Store, open_store: Callable[[str], Store], database_url: str) -> Store:
    """A server that has just started: what six ranks sent is in no tile."""
    known = catalogue(4)
    store.send_all([opening(known, rank=rank, world_size=RANKS) for rank in range(RANKS)])
    for number in range(2):
        steps = range(10 * number, 10 * number + 10)
        store.send_all([batch(known, number, steps, {"amax": 1.0 + rank}, rank=rank) for rank in range(RANKS)])
    store.close()
    return open_store(database_url)


def most(store: Store, stop: int) -> list[float]:
    """The largest magnitude of all ranks by step, and a check of the damage that is said."""
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        found = run.slice(RANGES, range(RANKS), 0, 0, stop, ("amax",)).columns["amax"].max(axis=0).tolist()
        assert any(each.part == "batch" for each in run.damage) == (stop < 20)
        return list(map(float, found))


def test_the_answer_is_kept_until_a_rank_has_said_more(just_started: Store) -> None:
    assert most(just_started, 20) == [6.0] * 20
    statements: list[str] = []
    event.listen(just_started.engines.reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert most(just_started, 20) == [6.0] * 20
    assert not [each for each in statements if "batches.body" in each or "batches.sequence" in each]
    just_started.send(batch(catalogue(4), 2, range(20, 30), {"amax": 9.0}, rank=0))
    assert most(just_started, 30) == [6.0] * 20 + [9.0] * 10


def test_a_damaged_batch_is_said_each_time(just_started: Store) -> None:
    def damage(connection: Any) -> None:
        connection.execute(text("UPDATE batches SET body = :body WHERE sequence = 1"), {"body": b"RW?"})

    just_started.writer.work(damage, forgets=True).result(30)
    for _ in range(2):
        assert most(just_started, 19) == [6.0] * 10 + [0.0] * 9


def test_batches_read_in_portions_give_the_same(just_started: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one here, with one between them that cannot be read."""
    monkeypatch.setattr("rangewatch.wire.alike.TOGETHER_BYTES", 0)
    at_once: list[int] = []

    def counted(alike: wire.Alike, *given: Any) -> list[list[Raw]]:
        at_once.append(len(alike.places))
        return raws_of_alike(alike, *given)

    monkeypatch.setattr("rangewatch_server.query.unfinished.raws_of_alike", counted)

    def damage(connection: Any) -> None:
        said = "UPDATE batches SET body = :body WHERE sequence = 1 AND stream_id = 2"
        connection.execute(text(said), {"body": b"RW?"})

    just_started.writer.work(damage, forgets=True).result(30)
    assert most(just_started, 19) == [6.0] * 19
    assert at_once == [1] * (2 * RANKS - 1)
