"""Unknown is told as unknown over HTTP; facts that make no sense, and ranks left behind, break no page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import Batch, Event, Samples
from rangewatch_server.collectives import hang_state
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, opening
from tests.server.routes.test_collectives_api import KNOWN, RANKS, STEPS, collectives

WORLD = {"name": "0", "hash": "a", "ranks": [0, 1]}
SHARED = {"groups": [WORLD], "ops": ["all_reduce"], "dtypes": ["float32"]}
HANGS: list[dict[str, Any]] = [
    {"stalled_s": 1e308},
    {"stalled_s": -1e308},
    {"groups": 5},
    {"groups": [{**WORLD, "enqueued": 1e300, "completed": None, "waiting": [{"op": "x", "sequence": 1e300}]}]},
    {
        "groups": [
            {**WORLD, "ranks": [2**63, 1], "enqueued": 5, "completed": 1, "waiting": [{"op": "x", "sequence": 5}]}
        ]
    },
]


BUCKETS: list[Any] = [{"9" * 5000: ["x"]}, {"\u0663": ["x"]}, [1, {"a": 1}, "s"]]


def rows(about: dict[str, Any], rank: int = 0, **columns: Any) -> Batch:
    """Four collectives of step 2, sent with the first batch."""
    usual = {
        "step": np.full(4, 2.0), "group": np.zeros(4), "op": np.zeros(4), "dtype": np.zeros(4),
        "bytes": np.full(4, 8.0), "sequence": np.arange(4.0), "duration_s": np.full(4, 0.001), "bucket": np.arange(4.0),
        "is_symmetric": np.ones(4),
    }  # fmt: skip
    found = Samples("collective", "", np.arange(4) + 10**18, usual | columns, about)
    first = batch(KNOWN, 0, range(3), rank=rank)
    return Batch(first.run, rank, first.incarnation, 0, first.catalogue, first.ranges, (), (), 0, (found,))


def test_what_is_not_known_is_null(run: Run) -> None:
    for rank in (0, 1, 2):
        run.post(opening(KNOWN, rank=rank, world_size=3))
    about = {**SHARED, "groups": [{**WORLD, "ranks": [0, 1, 2]}]}
    run.post(rows(about, 0, duration_s=np.full(4, 0.031)))
    run.post(rows(about, 1))
    run.post(rows(about, 2, duration_s=np.full(4, np.nan)))
    found = run.get("/collectives")  # the four overlap: 30 ms are lost once
    assert found["cost_to_others_s"] == [[0.0], [0.03], [None]] and found["wait_s"] == [[0.03], [0.0], [None]]
    means = [(each["cost_to_others_s"], each["wait_s"]) for each in found["by_rank"]]
    assert means == [(0.0, pytest.approx(0.03)), (pytest.approx(0.03), 0.0), (None, None)]


def test_buckets_are_named_where_only_an_earlier_batch_does(run: Run) -> None:
    """They are told with the first rows and once a minute."""
    run.post(opening(KNOWN))
    first = rows(SHARED | {"buckets": {"0": ["a.weight"], "3": ["b.weight"]}})
    run.post(first)
    late = Samples("collective", "", np.array([10**18 + 10**10]), {
        "step": np.array([700.0]), "group": np.zeros(1), "op": np.zeros(1), "dtype": np.zeros(1), "bytes": np.ones(1),
        "sequence": np.array([9.0]), "duration_s": np.ones(1), "bucket": np.array([3.0]), "is_symmetric": np.ones(1),
    }, SHARED)  # fmt: skip
    run.post(Batch("run", 0, "a", 1, first.catalogue, samples=(late,)))
    for query in ("", "?step=700"):
        found = run.get(f"/collectives/step{query}")
        assert [call["parameters"] for call in found["ranks"][0]["collectives"]] == [["b.weight"]], query


def test_a_host_whose_ranks_are_late_together_is_named(run: Run) -> None:
    rng = np.random.default_rng(1)
    for rank in range(RANKS):
        said = opening(KNOWN, rank=rank, world_size=RANKS)
        host = msgspec.structs.replace(said.info, host=f"node{rank // 2}")
        run.post(msgspec.structs.replace(said, info=host))
        found = collectives(rank, 3 if rank == 2 else 2, rng)  # 2 and 3 are late both
        if rank in (2, 3):
            found.columns["duration_s"][:] = 0.001 + rng.random(len(found.times_ns)) * 1e-4
        first = batch(KNOWN, 0, range(STEPS), rank=rank, series={"step_time_s": 0.2})
        run.post(Batch(first.run, rank, "a", 0, first.catalogue, first.ranges, first.series, (), 0, (found,)))
    verdict = run.get("/collectives")["verdict"]
    assert (verdict["rank"], verdict["host"], verdict["ranks"]) == (None, "node1", [2, 3])
    assert "for host node1, ranks 2 and 3 (" in verdict["text"]


def test_buckets_that_make_no_sense_break_no_page(run: Run) -> None:
    for rank, buckets in enumerate(BUCKETS):
        run.post(opening(KNOWN, rank=rank, world_size=len(BUCKETS)))
        run.post(rows(SHARED | {"buckets": buckets}, rank))
    for path in ("/collectives", "/collectives/step", "/hang"):
        assert run.ask(path).status_code == 200, path


def test_a_hang_that_makes_no_sense_breaks_no_page(run: Run) -> None:
    """One after the other: the newest is what counts."""
    for rank in (0, 1):
        run.post(opening(KNOWN, rank=rank, world_size=2))
    for sequence, data in enumerate(HANGS):
        for rank in (0, 1):
            event = Event("hang", 10**18 + sequence, 3, "", data)
            run.post(batch(KNOWN, sequence, [sequence], rank=rank, events=(event,)))
        for path in ("/hang", ""):
            answer = run.ask(path)
            assert answer.status_code == 200, (data, answer.text)


def test_records_of_a_hang_are_those_near_the_newest_steps(sqlite_url: str, open_store: Callable[[str], Store]) -> None:
    """A rank that was left behind long ago is no reason to read all that came since."""
    store = open_store(sqlite_url)
    for rank in (0, 1):
        store.send(opening(KNOWN, rank=rank, world_size=2))
        store.send(rows(SHARED, rank, step=np.array([2.0, 4930.0, 4990.0, 5000.0])))
    store.send(batch(KNOWN, 1, range(5000, 5001), rank=0))
    with store.queries.read() as reader:
        run = reader.run(1)
        assert run is not None
        steps = [each.columns["step"].tolist() for found in hang_state._records(run).values() for each in found]
    assert steps == [[4990.0, 5000.0]] * 2
