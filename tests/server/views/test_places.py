"""What is shown of one step: merged and thinned steps, restarts that merge otherwise, and what was no tensor."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select

from rangewatch.wire import events
from rangewatch.wire.events import BatchRows, RowLoss
from rangewatch.wire.records import Event, StreamHeader
from rangewatch_server.maintenance.jobs import QueuedJobs
from rangewatch_server.maintenance.retention.policy import Thin
from rangewatch_server.maintenance.retention.prune import thin
from rangewatch_server.numerics.headroom import State
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store import tables
from rangewatch_server.views import extremes
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def merging(ship_every: int, incarnation: str = "a") -> StreamHeader:
    given = opening(KNOWN, incarnation=incarnation)
    return msgspec.structs.replace(given, info=msgspec.structs.replace(given.info, ship_every=ship_every))


def observed(run: Run, steps: Sequence[int]) -> list[int]:
    return [step for step in steps if run.get(f"/step?step={step}")["observed"]]


def test_steps_that_never_were_are_not_shown(run: Run) -> None:
    run.post(merging(8))
    run.post(batch(KNOWN, 0, [7, 15, 18]))  # it ended within a column
    assert observed(run, range(30)) == list(range(19))


def test_of_steps_that_came_one_by_one_none_stands_for_another(run: Run) -> None:
    """Around NaN and Inf nothing is merged: step 11 was dropped, and 12 is not it."""
    run.post(merging(8))
    run.post(batch(KNOWN, 0, [7, 8, 9, 10, 12, 13, 14, 15, 23]))
    assert observed(run, range(26)) == [step for step in range(24) if step != 11]


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 64)])
def test_a_restart_may_merge_otherwise(run: Run, before: int, after: int) -> None:
    steps = [step for step in range(64) if step % before == before - 1]
    run.post(merging(before))
    run.post(batch(KNOWN, 0, [step for step in steps if step not in (5, 6)]))
    run.post(merging(after, "b"))
    run.post(batch(KNOWN, 0, [step for step in range(64, 128) if step % after == after - 1], incarnation="b"))
    dropped = [5, 6] if before == 1 else []
    assert observed(run, [3, 5, 6, 7, 9, 66, 127, 128]) == [
        step for step in (3, 5, 6, 7, 9, 66, 127) if step not in dropped
    ]
    for name in ("layers", "timeline"):
        meta = run.get(f"/figures/{name}")["meta"]
        assert meta["steps_per_column"] == max(before, after)
        states = np.frombuffer(base64.b64decode(meta["states"]["bdata"]), np.uint8)
        assert (states == State.VALUE).all()


def test_steps_that_a_full_spool_merged_are_no_gap(run: Run) -> None:
    """The server was away: steps 8 to 23 of rank 0 have a row for four, as its event says."""
    merged = Event("spool_merged", 5, 23, "", {"first_step": 8, "last_step": 23, "steps_a_row": 4})
    odd = Event("spool_merged", 5, 23, "", {"first_step": 0, "last_step": "x", "steps_a_row": 10**15})
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, range(8)))
    run.post(batch(KNOWN, 1, [11, 15, 19, 23], events=(merged, odd)))
    run.post(batch(KNOWN, 2, [24, 25, 27]))
    assert observed(run, range(30)) == [step for step in range(28) if step != 26]
    for name in ("layers", "timeline"):
        meta = run.get(f"/figures/{name}")["meta"]
        states = np.frombuffer(base64.b64decode(meta["states"]["bdata"]), np.uint8)
        assert (states == State.VALUE).all(), name
    meta = run.get("/figures/layers?start=24&stop=28")["meta"]
    assert meta["steps_per_column"] == 1, "nothing was merged there"


def test_the_account_of_a_step_is_the_first_sent_after_it(run: Run) -> None:
    run.post(opening(KNOWN))

    def reported(step: int, *names: str) -> Event:
        return Event("other_values", step, step, "", {"blocks.0.ff": dict.fromkeys(names, "None")})

    run.post(batch(KNOWN, 0, range(3), events=(reported(3, "input[1]"),)))
    run.post(batch(KNOWN, 1, range(3, 6), events=(reported(6, "input[1]", "input[2]"),)))
    run.post(batch(KNOWN, 2, range(6, 9)))
    for step, count in ((0, 1), (2, 1), (3, 2), (5, 2), (7, 2)):
        assert run.get(f"/step?step={step}")["report"].count("None input") == count
    run.post(opening(KNOWN, incarnation="b"))
    run.post(batch(KNOWN, 0, range(6, 9), incarnation="b", events=(reported(9, "input[1]"),)))
    for step, count in ((2, 1), (5, 2), (7, 1)):
        assert run.get(f"/step?step={step}")["report"].count("None input") == count


def test_a_time_past_all_reason_is_still_an_answer(run: Run) -> None:
    run.post(opening(KNOWN))
    assert "nonfinite_ns" in {each.name for each in KNOWN.statistics}
    run.post(batch(KNOWN, 0, range(1), {"nonfinite_ns": 1e300, "nan_count": 1.0}))
    assert run.get("/step?step=0")["frames"][0]["nonfinite_ns"] == 2**53


def test_the_rows_of_a_step_are_its_rank_s_and_of_its_newest_process(run: Run) -> None:
    run.post(opening(KNOWN))

    def rows(step: int, *ids: int | str) -> Event:
        return events.event(BatchRows(ids, len(ids), largest=(RowLoss(ids[0], "NaN"),)), step, step)

    run.post(batch(KNOWN, 0, range(9), events=(rows(3, 17, "a/b.png"), rows(4, 5))))
    assert run.get("/step?step=2")["batch"] is None
    shown = run.get("/step?step=3")["batch"]
    assert (shown["ids"], shown["largest"]) == ([17, "a/b.png"], [{"row": 17, "loss": "NaN"}])
    run.post(opening(KNOWN, incarnation="b"))
    run.post(batch(KNOWN, 0, range(3, 9), incarnation="b", events=(rows(3, 8),)))
    assert run.get("/step?step=3")["batch"]["ids"] == [8]


# Thinned steps: a large magnitude, a NaN without its neighbourhood, and a NaN with it

SPIKE, LONE, KEPT = 2003, 3005, 4100
STEPS = 8192


@pytest.fixture(scope="module", params=[1, 3])
def thinned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunReader, int]]:
    """A run kept at 8 or 512 steps a column, but around step KEPT; and that number."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('thinned')}/a.db")
    amax, nans = np.ones((3, STEPS)), np.zeros((3, STEPS))
    amax[1, SPIKE] = 60_000.0
    nans[2, [LONE, KEPT]] = nans[0, [LONE + 1, KEPT + 50]] = 1
    store.send(opening(KNOWN))
    for sequence, low in enumerate(range(0, STEPS, 512)):
        part = np.s_[:, low : low + 512]
        store.send(batch(KNOWN, sequence, range(low, low + 512), {"amax": amax[part], "nan_count": nans[part]}))
    _until_in_tiles(store)
    kept = frozenset((KEPT // 64 - 1, KEPT // 64, KEPT // 64 + 1))
    thin(QueuedJobs(store.writer), Thin(1, "run", STEPS - 512, request.param, kept, 0, 0))
    store.writer.stop()
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        yield run, 8**request.param
    store.engines.dispose()


def _until_in_tiles(store: Store) -> None:
    for _ in range(3_000):
        with store.engines.reader.connect() as connection:
            if connection.execute(select(func.min(tables.streams.c.frontier))).scalar() >= STEPS - 512:
                return
        time.sleep(0.01)
    raise AssertionError("never in tiles")


def worst(run: RunReader, start: int, stop: int) -> tuple[int, int, str, float | None]:
    found = extremes.locate(run, [0], start, stop, np.arange(3))
    assert found is not None
    return found.step, found.tensor, found.state, found.bits and round(found.bits, 2)


def test_the_worst_of_thinned_steps_keeps_its_step_state_and_bits(thinned: tuple[RunReader, int]) -> None:
    run, per = thinned
    column = SPIKE - SPIKE % per
    for start, stop in ((column, column + per), (SPIKE, SPIKE + 1), (column + 1, column + per), (1500, 2500)):
        assert worst(run, start, stop) == (SPIKE, 1, "saturated", 0.13), (start, stop)
    assert extremes.place_at(run, 0, SPIKE, 1).state == "saturated"
    other = extremes.place_at(run, 0, SPIKE + 1, 1)
    assert (other.state, other.bits) == ("not_observed", None), "the column's worst is not every step's"


def test_the_first_nan_of_thinned_steps_is_the_right_tensors(thinned: tuple[RunReader, int]) -> None:
    run, per = thinned
    column = LONE - LONE % per
    for start, stop in ((column, column + per), (2500, 4000), (0, STEPS)):
        assert worst(run, start, stop) == (LONE, 2, "nan", None), (start, stop)
    assert worst(run, KEPT - 20, KEPT + 20) == (KEPT, 2, "nan", None)
    assert worst(run, KEPT + 1, KEPT + 60) == (KEPT + 50, 0, "nan", None)


def test_the_next_and_the_previous_nan_are_found_among_thinned_steps(thinned: tuple[RunReader, int]) -> None:
    run, per = thinned
    bad = (LONE, KEPT, KEPT + 50)  # that there was another in the column of LONE is not known any more
    for start in (0, SPIKE, LONE - 2, LONE, LONE + 1, LONE + per, KEPT, KEPT + 1, KEPT + 51):
        expected = next((step for step in bad if step >= start), None)
        assert extremes.nonfinite_step(run, 0, start, STEPS, last=False) == expected, start
    for stop in (STEPS, KEPT + 51, KEPT + 50, KEPT + 1, KEPT, 4000, LONE + 1, LONE, SPIKE):
        expected = next((step for step in reversed(bad) if step < stop), None)
        assert extremes.nonfinite_step(run, 0, 0, stop, last=True) == expected, stop


def test_a_thinned_step_says_so(thinned: tuple[RunReader, int]) -> None:
    run, per = thinned
    assert extremes.step_details(run, 0, SPIKE)["thinned"] == {"step": STEPS - 512, "steps": per}
    assert extremes.frames(run, 0, SPIKE) == []
    assert extremes.step_details(run, 0, KEPT)["thinned"] is None
