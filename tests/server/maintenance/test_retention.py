"""Retention: the plan, what stays around events, what is read of thinned steps, deletion, and space given back."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from rangewatch.wire.records import Batch, Event, StreamHeader
from rangewatch_server import figures
from rangewatch_server.figures.base import Params
from rangewatch_server.maintenance.jobs import QueuedJobs
from rangewatch_server.maintenance.retention.plan import kept_tiles, planned, run_details
from rangewatch_server.maintenance.retention.policy import (
    DAY_NS,
    NEWEST_STEPS,
    Policy,
    Remove,
    RunDetails,
    Span,
    Stored,
    Thin,
    plan,
)
from rangewatch_server.maintenance.retention.prune import apply, between, table_of, thin
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART, SUMMARY
from rangewatch_server.query.slices import Cache
from rangewatch_server.store import tables
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

TENSORS, STEPS, SIZE = 4, 6_000, 500
BAD, SPIKE, RESUMED = 2_345, 1_500, 1_003  # steps; the first 1,003 were another run's
NOW = 1_000 * DAY_NS
WANTED = ("call_count", "amax", "nan_count", "inf_count", "amax_step", "nonfinite_step")


def facts(run: int, days_ago: float, ended: bool = True, steps: int = 65_536, **other: Any) -> RunDetails:
    """A run that lasted a day: a MB a level 0 tile, an eighth a level up."""
    last_ns = int(NOW - days_ago * DAY_NS)
    stored = [Stored(k, t, 1, 10**6 // 8**k) for k in range(3) for t in range(steps // 8**k // 64)]
    usual = {
        "frontier": steps, "thin_step": 0, "thin_level": 0,
        "kept": frozenset(), "stored": tuple(stored), "bytes": sum(each.bytes for each in stored),
    }  # fmt: skip
    spans = (Span(last_ns - DAY_NS, last_ns, 0, steps - 1),)
    return RunDetails(run, f"run {run}", ended, **({"spans": spans, "last_seen_ns": last_ns} | usual | other))


def test_without_a_policy_nothing_goes() -> None:
    assert plan([facts(1, 900)], Policy(), NOW, 10**15) == []


def test_age_takes_single_steps_of_what_is_old_and_never_a_run() -> None:
    found = plan([facts(1, 90), facts(2, 31), facts(3, 1)], Policy(30), NOW, 10**9)
    by_run = {each.run: each for each in found}
    assert set(by_run) == {1, 2}
    assert all(isinstance(each, Thin) and each.step == 65_536 for each in found)
    assert by_run[2].level == 1
    assert plan([facts(1, 900)], Policy(30), NOW, 10**9)[0].level > 1  # a coarser level, but not the run


def test_a_run_half_as_old_loses_its_first_half_only() -> None:
    only = plan([facts(1, 29.5)], Policy(30), NOW, 10**9)
    assert [(each.level, each.step) for each in only] == [(1, 65_536 // 2)]


def test_a_live_runs_newest_steps_stay() -> None:
    only = plan([facts(1, 0, ended=False)], Policy(keep_bytes=0), NOW, 10**15)
    assert [type(each) for each in only] == [Thin]
    assert only[0].step <= 65_536 - NEWEST_STEPS


def test_size_takes_the_oldest_steps_first_then_coarser_ones_then_ended_runs() -> None:
    runs = [facts(1, 10), facts(2, 5), facts(3, 0, ended=False)]
    total = sum(run.bytes for run in runs)
    little = plan(runs, Policy(keep_bytes=total - 10**8), NOW, total)
    assert [(each.run, each.level) for each in little] == [(1, 1)]
    assert 10**8 <= little[0].bytes < 10**8 + 8 * 10**6  # no more than it takes
    half = plan(runs, Policy(keep_bytes=total // 5), NOW, total)
    assert [(each.run, each.level) for each in half] == [(1, 1), (2, 1), (3, 1)]
    assert half[2].bytes < half[1].bytes
    most = plan(runs, Policy(keep_bytes=0), NOW, total)
    assert [each.run for each in most if isinstance(each, Remove)] == [1, 2]


def test_what_is_around_an_event_is_not_counted_as_going() -> None:
    all_of_it = plan([facts(1, 40)], Policy(30), NOW, 0)[0]
    less = plan([facts(1, 40, kept=frozenset({10, 11, 12}))], Policy(30), NOW, 0)[0]
    assert less.bytes == all_of_it.bytes - 3 * 10**6
    assert "total" in table_of([less])[-1]
    rows = [int(line.split()[-2]) for line in table_of([less, all_of_it])[1:]]
    assert rows == [less.tiles, all_of_it.tiles, less.tiles + all_of_it.tiles]


def test_gaps_between_what_stays() -> None:
    assert list(between([2, 3, 7], 9)) == [(0, 2), (4, 7), (8, 9)]
    assert list(between([0], 1)) == []


@pytest.fixture
def truth() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    amax = np.exp2(random.normal(0, 3, (2, TENSORS, STEPS)).clip(-10, 10)).astype(np.float16).astype(float)
    amax[1, 2, SPIKE] = 60_000.0  # one step of one tensor of one rank
    nans = np.zeros((2, TENSORS, STEPS))
    nans[0, 1, BAD] = 5.0
    return {"amax": amax, "nan_count": nans, "loss": random.normal(size=STEPS)}


def fill(store: Store, truth: dict[str, np.ndarray], first: int = RESUMED, ends: bool = True) -> None:
    known = catalogue(TENSORS)
    messages: list[StreamHeader | Batch] = [opening(known, rank=rank, world_size=2) for rank in range(2)]
    cuts = [first, *range(first // SIZE * SIZE + SIZE, STEPS + 1, SIZE)]
    for sequence, (low, high) in enumerate(itertools.pairwise(cuts)):
        events = (Event("finished", 0, high),) if ends and high == STEPS else ()
        series = {"loss": truth["loss"][low:high]}
        for rank in range(2):
            columns = {name: truth[name][rank][:, low:high] for name in ("amax", "nan_count")}
            messages.append(batch(known, sequence, range(low, high), columns, rank=rank, series=series, events=events))
    store.send_all(messages)
    idle(store)


def idle(store: Store) -> None:
    """Until what had to wait has been made into tiles."""
    for _ in range(3_000):
        if min(frontiers(store)) >= STEPS // 64 * 64:
            return
        time.sleep(0.01)
    raise AssertionError("tiles are never done")


def frontiers(store: Store) -> list[int]:
    """Of the ranks, and of all ranks merged where there are several."""
    with store.engines.reader.connect() as connection:
        rows = connection.execute(select(tables.streams.c.rank, tables.streams.c.frontier)).all()
    is_merged = len(rows) == 1 or any(row.rank < 0 for row in rows)
    return [row.frontier for row in rows] if is_merged else [0]


def level_0(store: Store, part: str = RANGES) -> set[int]:
    tiles = tables.tiles.c
    with store.engines.reader.connect() as connection:
        return set(connection.execute(select(tiles.tile).where(tiles.level == 0, tiles.part == part)).scalars())


def jobs_of(store: Store) -> QueuedJobs:
    return QueuedJobs(store.writer)


def thin_all(store: Store, level: int = 1) -> Thin:
    """Everything that may go, up to a level."""
    found = run_details(store.engines.reader, 1, time.time_ns())
    assert found is not None and found.has_ended
    step = found.frontier // 512 * 512
    action = Thin(1, found.name, step, level, found.kept, 0, 0)
    thin(jobs_of(store), action)
    store.queries.cache = Cache()  # what was read before is not what is there
    return action


def blocks(store: Store, level: int, start: int, stop: int, ranks: tuple[int, ...] = (0, 1)) -> list[bytes]:
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        found = [
            run.slice(RANGES, list(ranks), level, start, stop, WANTED),
            run.slice(SUMMARY, list(ranks), level, start, stop, ("bits", "nan_count")),
            run.slice(SERIES_PART, list(ranks), level, start, stop, ("count", "min", "max")),
        ]
    return [values.astype(float).tobytes() for block in found for _, values in sorted(block.columns.items())]


def figure(store: Store, name: str, start: int, stop: int, columns: int = 1_000) -> dict[str, Any]:
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        params = Params(start=start, stop=stop, ranks=(0, 1), tensor=2, columns=columns)
        data, meta = figures.BY_NAME[name].build(run, params)
    return {"figure": {"data": data}, "meta": meta}


def test_what_is_thinned_is_single_steps_that_no_event_is_near(store: Store, truth: dict[str, np.ndarray]) -> None:
    """Everything from the kept level up is as before, and around an event every step."""
    fill(store, truth)
    before = {level: blocks(store, level, RESUMED, STEPS) for level in (1, 2, 3)}
    low, high = BAD // 64 * 64 - 64, BAD // 64 * 64 + 128
    steps_before, drawn_before = blocks(store, 0, low, high), figure(store, "layers", low + 3, high - 5)
    was_there = level_0(store)
    action = thin_all(store)
    assert level_0(store) == level_0(store, SUMMARY) == level_0(store, SERIES_PART)
    gone = was_there - level_0(store)
    assert gone == set(range(action.step // 64)) & was_there - action.kept
    assert len(gone) > 60
    assert {level: blocks(store, level, RESUMED, STEPS) for level in (1, 2, 3)} == before

    assert {BAD // 64 - 1, BAD // 64, BAD // 64 + 1, RESUMED // 64} <= action.kept
    assert SPIKE // 64 not in action.kept
    assert blocks(store, 0, low, high) == steps_before
    drawn = figure(store, "layers", low + 3, high - 5)
    assert drawn == drawn_before and drawn["meta"]["steps_per_column"] == 1

    for name in ("layers", "timeline", "tensor", "loss"):
        is_shown_in_the_columns_there_are(store, truth, name)
    thin_all(store, level=2)
    assert {level: blocks(store, level, RESUMED, STEPS) for level in (2, 3)} == {2: before[2], 3: before[3]}


def is_shown_in_the_columns_there_are(store: Store, truth: dict[str, np.ndarray], name: str) -> None:
    """The figure of a thinned range."""
    found = figure(store, name, SPIKE - 101, SPIKE + 102)
    meta = found["meta"]
    assert meta["steps_per_column"] == 8 and meta["start"] % 8 == 0 and meta["stop"] % 8 == 0
    assert "detail before step 5632 is kept at 8 steps a column" in meta["note"]
    assert meta["thinned"] == {"step": 5632, "steps": 8}, name
    if name == "layers":
        start, stop = meta["start"], meta["stop"]
        amax = truth["amax"][:, :, start:stop].max(axis=0).reshape(TENSORS, -1, 8).max(axis=2)
        expected = np.minimum(np.log2(65504 / amax), 16)
        z = np.frombuffer(found["figure"]["data"][0]["z"]["bdata"], "<f4").reshape(TENSORS, -1)
        assert z == pytest.approx(expected, abs=1e-3)
    if name == "loss":  # every column's extremes, none of them lost at the ragged edges
        count = sum(len(np.frombuffer(trace["y"]["bdata"], "<f8")) for trace in found["figure"]["data"][:1])
        assert count == (meta["stop"] - meta["start"]) // 8 * 2
    assert "thinned" not in figure(store, name, 5_700, 5_900)["meta"]


def test_what_stays_around_losses_and_skipped_steps_and_failures(store: Store) -> None:
    known = catalogue(1)
    store.send(opening(known))
    loss, skipped = np.ones(STEPS), np.zeros(STEPS)
    loss[640], skipped[1_920] = np.nan, 1.0
    for sequence, low in enumerate(range(0, STEPS, SIZE)):
        series = {"loss": loss[low : low + SIZE], "skipped_step": skipped[low : low + SIZE]}
        events = (Event("failed", 1, 3_300),) if low == 5_500 else ()
        store.send(batch(known, sequence, range(low, low + SIZE), series=series, events=events))
    idle(store)
    with store.engines.reader.connect() as connection:
        found = kept_tiles(connection, 1)
    middles = (0, 640 // 64, 1_920 // 64, 3_300 // 64)
    assert found == {tile + each for tile in middles for each in (-1, 0, 1)} - {-1}


def test_late_rows_of_thinned_steps_do_not_cost_the_pyramid(store: Store, truth: dict[str, np.ndarray]) -> None:
    fill(store, truth, ends=False)
    with store.engines.writer.begin() as connection:  # silent for a day
        connection.execute(tables.streams.update().values(last_seen_ns=time.time_ns() - DAY_NS, started_ns=0))
    thin_all(store)
    whole = blocks(store, 1, 1_024, STEPS // 64 * 64, (1,))
    known = catalogue(TENSORS)
    late = range(SPIKE - 4, SPIKE + 2)  # rank 1 sends them once more, under other sequence numbers
    columns = {"amax": np.full((TENSORS, 6), 65_000.0), "call_count": 0.0 * np.zeros((TENSORS, 6)) + 1}
    sequence = len(range(RESUMED // SIZE * SIZE + SIZE, STEPS + 1, SIZE))
    store.send(batch(known, sequence, late, columns, rank=1))
    store.send(batch(known, sequence + 1, range(STEPS, STEPS + 600), rank=1))
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        block = run.slice(RANGES, [1], 1, 1_024, STEPS // 64 * 64, ("amax", "call_count"))
        top = run.slice(RANGES, [1], 2, 1_024, 4_096, ("amax", "call_count"))
    changed = {(SPIKE - 4) // 8, (SPIKE + 1) // 8}
    for column in range(block.width):
        low = (block.first + column) * 8
        own = truth["amax"][1][:, low : low + 8].max(axis=1)
        is_late = block.first + column in changed
        expected = np.maximum(own, 65_000.0) if is_late else own
        assert (block.columns["amax"][:, column] == expected).all(), low
        calls = 8 + sum(low <= step < low + 8 for step in late)
        assert (block.columns["call_count"][:, column] == calls).all(), low
    assert top.columns["amax"].max() == 65_000.0
    assert whole != blocks(store, 1, 1_024, STEPS // 64 * 64, (1,))
    assert SPIKE // 64 not in level_0(store)  # the late rows alone do not pose as the whole tile


def test_interrupted_anywhere_the_next_run_finishes(store: Store, truth: dict[str, np.ndarray]) -> None:
    fill(store, truth)
    before = {level: blocks(store, level, RESUMED, STEPS) for level in (1, 2)}
    policy, real = Policy(keep_days=1e-9), jobs_of(store)
    for after in (1, 2, 3):
        left = [after]

        def jobs(job: Any, *, forgets: bool = False, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise InterruptedError
            return real(job, forgets=forgets)

        with contextlib.suppress(InterruptedError):
            apply(jobs, store.engines.writer, planned(store.engines.reader, policy), lambda _: None)
        assert {level: blocks(store, level, RESUMED, STEPS) for level in (2,)} == {2: before[2]}
    apply(real, store.engines.writer, planned(store.engines.reader, policy), lambda _: None)
    assert planned(store.engines.reader, policy) == []
    assert planned(store.engines.reader, Policy()) == []
