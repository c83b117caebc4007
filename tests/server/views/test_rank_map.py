"""The map of ranks: one value a rank by each measure, the straggler named, unknown as unknown, 1,024 ranks bounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import RankInfo, Samples, StreamHeader
from rangewatch_server.query.reader import RunReader
from rangewatch_server.views.rank_map import BY_NAME, rank_map
from tests.browser import large_runs
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue

KNOWN = catalogue(2)
RANKS, STEPS, LATE, HOT, SECOND = 6, 12, 4, 1, 10**9


def samples(rank: int) -> tuple[Samples, ...]:
    """One all_reduce a step to which rank 4 comes 30 ms late; a card whose chip is hot and slowed on rank 1, of rank 5
    none."""
    step, one = np.arange(STEPS, dtype=float), np.ones(STEPS)
    columns = {
        "step": step, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 1024 * one, "sequence": step,
        "duration_s": np.where(rank == LATE, 0.001, 0.031) * one, "is_symmetric": one,
    }  # fmt: skip
    group = {"name": "0", "hash": "abc", "ranks": list(range(RANKS)), "desc": "default_pg"}
    about = {"groups": [group], "ops": ["all_reduce"], "dtypes": ["float32"]}
    calls = Samples("collective", "", 10**18 + (step * SECOND).astype(np.int64), columns, about)
    hot = rank == HOT
    values = {
        "step": 1.0, "present": 1.0, "temperature_c": 91.0 if hot else 60.0, "throttle_reasons": 64.0 if hot else 4.0,
        "sm_clock_mhz": 1200.0 if hot else 1980.0,
    }  # fmt: skip
    card = {name: np.array([value]) for name, value in values.items()}
    return (calls,) if rank == 5 else (calls, Samples("gpu", f"GPU-{rank}", np.array([time.time_ns()]), card, {}))


@pytest.fixture(scope="module")
def mapped(module_run: Run) -> Run:
    """Six of eight ranks on three hosts."""
    for rank in range(RANKS):
        info = RankInfo("run", rank, 8, rank % 2, f"node{rank // 2}", "a", time.time_ns())
        sent = batch(
            KNOWN, 0, range(STEPS), {"amax": 60_000.0 if rank == 3 else 1.0}, rank=rank, series={"step_time_s": 0.2}
        )
        module_run.post(StreamHeader(info, KNOWN), msgspec.structs.replace(sent, samples=samples(rank)))
    return module_run


def shown(run: Run, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = run.get(f"/rank_map{query}")
    return found


def test_who_the_others_wait_for_stands_out(mapped: Run) -> None:
    found = shown(mapped)
    assert (found["measure"], found["rank_count"], found["known_count"]) == ("cost", RANKS, RANKS)
    (odd,) = found["outliers"]
    assert (odd["rank"], odd["host"]) == (LATE, "node2") and odd["value"] == pytest.approx(0.03)
    assert found["others"] == {"count": 5, "median": 0.0, "p5": 0.0, "p95": 0.0}
    rows = [(node["host"], node["ranks"], node["local_ranks"]) for node in found["nodes"]]
    assert rows == [
        ("node0", [0, 1], [0, 1]),
        ("node1", [2, 3], [0, 1]),
        ("node2", [4, 5], [0, 1]),
        (None, [6, 7], [0, 1]),
    ]
    assert found["nodes"][-1]["values"] == [None, None], "who has not reported is unknown, and never 0"


@pytest.mark.parametrize(
    ("measure", "odd"),
    [("temperature", [HOT]), ("clocks", [HOT]), ("throttle", [HOT]), ("headroom", [3]), ("step_time", [])],
)
def test_each_measure_has_its_own(mapped: Run, measure: str, odd: list[int]) -> None:
    found = shown(mapped, f"?measure={measure}")
    assert [each["rank"] for each in found["outliers"]] == odd
    values = {rank: value for node in found["nodes"] for rank, value in zip(node["ranks"], node["values"], strict=True)}
    assert (values[5] is None) == (measure in ("temperature", "clocks", "throttle"))


def test_a_range_without_collectives_has_none_and_no_other_measure_is_made_up(mapped: Run) -> None:
    assert shown(mapped, "?measure=cost&start=50")["known_count"] == 0
    answer = mapped.ask("/rank_map", params={"measure": "mood"})
    assert answer.status_code == 422 and "cost" in answer.text


def test_without_collectives_the_step_time_is_shown(run: Run) -> None:
    for rank in range(3):
        info = RankInfo("run", rank, 3, rank, "", "a", time.time_ns())
        run.post(
            StreamHeader(info, KNOWN),
            batch(KNOWN, 0, range(STEPS), rank=rank, series={"step_time_s": 0.2 + (rank == 1)}),
        )
    found = shown(run)
    assert (found["measure"], [each["rank"] for each in found["outliers"]]) == ("step_time", [1])


@pytest.mark.slow
def test_a_thousand_ranks_are_one_small_answer(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'runs.db'}")
    large_runs.send(store, large_runs.fleet(1_024))
    while store.writer.memory.backlog or store.writer.memory.unmerged:
        time.sleep(0.02)
    with store.queries.read() as reader:
        run = reader.run(reader.run_ids()[0])
        assert isinstance(run, RunReader)
        found = {name: rank_map(run, name, 0, 64) for name in BY_NAME}
    store.close()
    assert [each["rank"] for each in found["cost"]["outliers"]] == [large_runs.LATE]
    assert found["cost"]["others"]["count"] == 1_023
    assert [each["rank"] for each in found["temperature"]["outliers"]] == [1]
    assert found["step_time"]["outliers"] == found["headroom"]["outliers"] == []
    assert all(len(msgspec.json.encode(each)) < 32_000 and len(each["nodes"]) == 128 for each in found.values())
