"""Slices of one rank: a few rows are those of the whole, however they are read; merging in groups rounds alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from rangewatch.statistics import UFUNCS
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import AMAX_STEP, FANOUT, NO_STEP, NONFINITE_STEP, RANGES, Block
from rangewatch_server.query import slices
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.slices import beside, join, sharing_columns
from rangewatch_server.store import tables
from rangewatch_server.store.rows import align
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

TENSORS, STEPS = 12, 1_350  # two tiles of level 1, some of level 0 after them, and steps that are in none
KNOWN = catalogue(TENSORS)
FILL = pyramid.identities(RANGES, KNOWN.statistics)
RULES = pyramid.merge_rules(RANGES, KNOWN.statistics)
WANTED = ("call_count", "amax", "nan_count", "sum_sq", AMAX_STEP, NONFINITE_STEP)
SPANS = ((0, STEPS), (0, 1_024), (130, 1_341), (517, 518), (1_345, 1_350))


def fill(store: Store) -> None:
    """One rank with values that differ from cell to cell; some NaN."""
    generator = np.random.default_rng(4)
    messages: list[StreamHeader | Batch] = [opening(KNOWN)]
    for sequence, low in enumerate(range(0, STEPS, 90)):
        shape = (TENSORS, min(90, STEPS - low))
        columns = {
            "amax": generator.random(shape), "sum_sq": generator.random(shape), "full_numel": 32.0,
            "nan_count": generator.random(shape) > 0.95,
        }  # fmt: skip
        messages.append(batch(KNOWN, sequence, range(low, low + shape[1]), columns))
    store.send_all(messages)


def read(store: Store, look: Callable[[RunReader], Any]) -> Any:
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        return look(run)


def same(left: Block, right: Block) -> None:
    assert (left.level, left.first) == (right.level, right.first)
    assert np.array_equal(left.rows, right.rows)
    assert left.columns.keys() == right.columns.keys()
    for name, values in left.columns.items():
        found = right.columns[name].astype(np.float64)
        assert values.astype(np.float64).tobytes() == found.tobytes(), (name, left.level)


def test_a_few_rows_are_those_of_the_whole(store: Store) -> None:
    fill(store)
    for rows in ([7], [0, 11], [3, 500], [500]):
        store.queries.cache = slices.Cache()
        these_are_those_of_the_whole(store, np.array(rows))


def these_are_those_of_the_whole(store: Store, asked: np.ndarray) -> None:
    def look(run: RunReader) -> None:
        assert slices.few(asked, RANGES, run.names()) is asked
        for level, (start, stop) in itertools.product(range(4), SPANS):
            found = run.slice(RANGES, [0], level, start, stop, WANTED, asked)
            whole = run.slice(RANGES, [0], level, start, stop, WANTED)  # after it, so that it could take what is kept
            assert np.array_equal(whole.rows, np.arange(TENSORS))
            same(found, align(whole, asked, FILL))

    for _ in ("cold", "out of the cache"):
        read(store, look)


def test_many_rows_are_read_as_whole_tiles_that_others_find_in_the_cache(store: Store) -> None:
    fill(store)
    most = TENSORS // slices.FEW

    def look(run: RunReader) -> None:
        assert slices.few(np.arange(most), RANGES, run.names()) is not None
        assert slices.few(np.arange(most + 1), RANGES, run.names()) is None
        assert slices.few(None, RANGES, run.names()) is None

    read(store, look)


def test_a_damaged_tile_is_damage_to_few_rows_too(store: Store) -> None:
    fill(store)
    tile = tables.tiles.c
    mine = (tile.part == RANGES) & (tile.level == 0) & (tile.tile == 5) & (tile.stream_id == 1)
    with store.engines.writer.begin() as connection:
        payload = bytearray(connection.execute(select(tile.payload).where(mine)).scalar_one())
        payload[-1] ^= 1
        connection.execute(update(tables.tiles).where(mine).values(payload=bytes(payload)))

    def look(run: RunReader) -> Block:
        found = run.slice(RANGES, [0], 0, 300, 400, WANTED, np.array([7]))
        assert [(each.level, each.tile) for each in run.damage] == [(0, 5)]
        return found

    seen = read(store, look).columns["call_count"][0] > 0
    assert np.array_equal(np.flatnonzero(~seen) + 300, np.arange(320, 384))


@st.composite
def cut_up(draw: Callable[..., Any]) -> list[Block]:
    """A rectangle of level 1 in pieces side by side, perhaps one over another, perhaps with gaps.

    Of eighths any order of adding gives the same bits; of other floats the last one may differ.
    """
    first = draw(st.integers(0, 20))
    pieces = []
    for _ in range(draw(st.integers(1, 5))):
        width, seed = draw(st.integers(1, 30)), draw(st.integers(0, 1_000))
        generator = np.random.default_rng(seed)
        rows = np.array(sorted(draw(st.sets(st.integers(0, 5), min_size=1))))
        shape = (len(rows), width)
        steps = (first + np.arange(width)) * FANOUT + generator.integers(0, FANOUT, shape)
        columns: dict[str, Any] = {
            "call_count": np.broadcast_to(8.0, shape), "amax": generator.integers(0, 4, shape).astype(np.float32),
            "sum_sq": generator.integers(0, 1_000, shape) / 8, AMAX_STEP: steps.astype(float),
        }  # fmt: skip
        pieces.append(Block(1, first, rows, columns))
        first = max(0, first + width + draw(st.integers(-3, 20)))
    return pieces


@given(cut_up())
def test_pieces_made_coarser_in_groups_are_what_all_at_once_are(pieces: list[Block]) -> None:
    wanted = ("call_count", "amax", "sum_sq", AMAX_STEP)
    rows = np.arange(6)
    size = FANOUT
    start, stop = min(each.first for each in pieces) * size, max(each.first + each.width for each in pieces) * size
    whole = pyramid.coarser(join(pieces, 1, start, stop, wanted, rows, FILL, RULES), RULES, FILL)
    groups = [
        pyramid.coarser(beside(group, wanted, FILL, RULES), RULES, FILL) for group in sharing_columns(pieces[::-1])
    ]
    ends = [(each.first, each.first + each.width) for each in groups]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))
    same(join(groups, 2, start, stop, wanted, rows, FILL, RULES), whole)


@given(st.integers(0, 1_000), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["max", "min", "sum"]))
def test_groups_of_eight_merge_as_numpy_merges_one(seed: int, rows: int, groups: int, rule: str) -> None:
    values = np.random.default_rng(seed).random((rows, groups, FANOUT)).astype(np.float32 if seed % 2 else np.float64)
    found = pyramid.reduce_axis({"x": values}, {"x": rule}, 2)["x"]
    ufunc = UFUNCS[rule]
    for row, group in itertools.product(range(rows), range(groups)):
        one = ufunc.reduce(values[row, group], dtype=np.float64 if rule == "sum" else None)
        assert found[row, group] == one
        assert found.dtype == one.dtype


@pytest.mark.parametrize("spoiled", ["nothing", "call_count", "nan_count", "inf_count"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_places_of_constant_columns_are_those_of_any(spoiled: str, is_constant: bool) -> None:
    shape, steps = (2, 3), np.array([10, 11, 12])
    columns = {"call_count": 1.0, "nan_count": 0.0, "inf_count": 0.0}
    if spoiled != "nothing":
        columns[spoiled] = 1 - columns[spoiled]
    filled = {name: np.broadcast_to(value, shape) for name, value in columns.items()}
    found = pyramid.with_places(filled if is_constant else {n: v.copy() for n, v in filled.items()}, steps)
    seen, bad = columns["call_count"] > 0, columns["nan_count"] + columns["inf_count"] > 0
    assert np.array_equal(found[AMAX_STEP], [list(steps) if seen else [NO_STEP] * 3] * 2)
    assert np.array_equal(found[NONFINITE_STEP], [list(steps) if bad else [NO_STEP] * 3] * 2)


CASES = itertools.product([(0.0, 0.0), (1.0, 0.0), (np.inf, np.inf), (2.0, np.inf)], [np.uint8, np.float32, np.float64])


@pytest.mark.parametrize(
    ("value", "neutral", "dtype"),
    [(*values, dtype) for values, dtype in CASES if dtype is not np.uint8 or np.isfinite(values[0])],
)
def test_padding_holds_the_neutral_element(value: float, neutral: float, dtype: type) -> None:
    for values in (np.broadcast_to(dtype(value), (2, 3)), np.full((2, 3), value, dtype)):
        assert np.array_equal(pyramid.padded(values, 1, 2, neutral), [[neutral, *[value] * 3, neutral, neutral]] * 2)


def test_more_columns_than_anybody_can_use_are_refused(store: Store) -> None:
    """A run whose last step is 2**50 has that many; to read them would end in no time."""
    store.send_all([opening(KNOWN), batch(KNOWN, 0, [0, 2**50])])
    with pytest.raises(ValueError, match="too many to be read at once"):
        read(store, lambda run: run.slice(RANGES, [0], 0, 0, 2**50 + 1, ("amax",)))
    few = read(store, lambda run: run.slice(RANGES, [0], 14, 0, 2**50 + 1, ("amax",)))
    assert np.isfinite(few.columns["amax"]).any()
