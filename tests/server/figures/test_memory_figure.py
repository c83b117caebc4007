"""The figure of memory: the most and the least of the ranks, and which ranks these are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

GIB = float(1 << 30)


def figure(run: Run, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = run.get(f"/figures/memory?{query}")
    valid(found["figure"])
    return found


def lines(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {each["name"]: array(each["y"]) for each in found["figure"]["data"]}


def send(run: Run, series: dict[str, Any], rank: int = 0, ranks: int = 1, steps: int = 100) -> None:
    known = catalogue(1)
    run.post(opening(known, rank=rank, world_size=ranks), batch(known, 0, range(steps), rank=rank, series=series))


def test_by_rank_of_a_device(run: Run) -> None:
    for rank in range(3):
        allocated = (10 + rank) * GIB + np.arange(100) * GIB / 100
        held = {"memory_allocated_bytes": allocated, "memory_reserved_bytes": 20 * GIB, "memory_peak_bytes": 15 * GIB}
        send(run, held | {"process_resident_bytes": 2 * GIB}, rank, 3)
    found = figure(run)
    assert list(lines(found)) == ["allocated", "reserved", "peak", "allocated, least"]
    assert lines(found)["allocated"][[0, -1]].tolist() == [12.0, 12.99]
    assert lines(found)["allocated, least"][0] == 10.0
    assert (found["meta"]["unit"], found["meta"]["is_device"]) == ("GiB", True)
    ends = found["meta"]["by_rank"]
    assert (ends["most"]["rank"], ends["least"]["rank"]) == (2, 0) and ends["most"]["bytes"] == 12.99 * GIB
    one = figure(run, "rank=1")
    assert list(lines(one)) == ["allocated", "reserved", "peak"] and one["meta"]["by_rank"] is None
    assert lines(one)["allocated"][0] == 11.0
    assert lines(figure(run, "columns=7"))["allocated"].max() == 12.99, "no peak is lost in a column"


def test_of_a_cpu_run_and_between_samples(run: Run) -> None:
    resident = np.where(np.arange(100) % 10, np.nan, GIB / 2)
    known = catalogue(1)
    run.post(opening(known), batch(known, 0, range(100)))
    at = np.arange(0, 100, 10)
    run.post(batch(known, 1, at, {"call_count": 0.0}, series={"process_resident_bytes": resident[at]}))
    found = figure(run)
    assert list(lines(found)) == ["resident", "resident peak"] and not found["meta"]["is_device"]
    assert array(found["figure"]["data"][0]["x"]).tolist() == at.tolist(), "a step without a sample is no 0"
    assert not len(lines(found)["resident peak"])


def test_the_map_of_ranks_names_who_holds_more(run: Run) -> None:
    for rank in range(8):
        send(run, {"memory_allocated_bytes": (30 if rank == 5 else 10) * GIB}, rank, 8, steps=4)
    found = run.get("/rank_map?measure=memory")
    assert [each["rank"] for each in found["outliers"]] == [5] and found["unit"] == "_bytes"
