"""The figure of the phases: areas that add up to the mean step, and who waits for data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.figures.phases import PHASES
from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

FAST = {"data_wait_s": 0.01, "forward_s": 0.02, "backward_s": 0.05, "optimizer_s": 0.01, "other_s": 0.01}
SLOW = FAST | {"data_wait_s": 0.5}


@pytest.fixture(scope="module")
def phased(module_run: Run) -> Run:
    """Rank 0 fast, rank 1 waits for its data, rank 2 tells of no phases."""
    known = catalogue(1)
    for rank, seconds in enumerate((FAST, SLOW, {})):
        module_run.post(opening(known, rank=rank, world_size=3))
        module_run.post(batch(known, 0, range(1), rank=rank))  # the first step has no time
        series = seconds | {"step_time_s": sum(seconds.values()) or 0.2}
        module_run.post(batch(known, 1, range(1, 200), rank=rank, series=series))
    return module_run


def figure(run: Run, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = run.get(f"/figures/phases?{query}")
    valid(found["figure"])
    return found


NAMES = [phase.replace("_", " ") for phase in PHASES]


def areas(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {each["name"]: array(each["y"]) for each in found["figure"]["data"] if each["name"] in NAMES}


def lines(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {each["name"]: array(each["y"]) for each in found["figure"]["data"] if each["name"] not in NAMES}


@pytest.mark.parametrize("columns", [1000, 7])
def test_one_rank(phased: Run, columns: int) -> None:
    found = figure(phased, f"rank=0&columns={columns}")
    assert list(areas(found)) == ["data wait", "forward", "backward", "optimizer", "other"]
    total = np.sum(list(areas(found).values()), axis=0)
    assert total == pytest.approx(np.full(len(total), 100.0))
    assert len(total) == (199 if columns == 1000 else found["meta"]["columns"])
    assert lines(found)["slowest step"] == pytest.approx(total)
    assert found["meta"]["unknown"] == ["exposed_comm"]
    assert found["meta"]["dominant"] == "backward" and not found["meta"]["is_loader_bound"]
    assert found["meta"]["note"].startswith("rank 0; ")


def test_the_mean_of_ranks_and_the_worst(phased: Run) -> None:
    found = figure(phased, "columns=20")
    width = found["meta"]["columns"]
    assert areas(found)["data wait"] == pytest.approx(np.full(width, (10 + 500) / 2)), "rank 2 is in no mean"
    assert np.sum(list(areas(found).values()), axis=0) == pytest.approx(np.full(width, (100 + 590) / 2))
    assert lines(found)["data wait, worst"] == pytest.approx(np.full(width, 500.0))
    assert lines(found)["slowest step"] == pytest.approx(np.full(width, 590.0))
    assert found["meta"]["loader_bound_ranks"] == [1] and found["meta"]["is_loader_bound"]
    assert [each["steps"] for each in found["meta"]["shares"]] == [50, 50, 0]
    assert found["meta"]["note"] == f"mean of 3 ranks; each column: mean of {found['meta']['steps_per_column']} steps"


def test_the_first_step_which_has_no_time_is_left_out(phased: Run) -> None:
    found = figure(phased, "rank=0&start=0&stop=10")
    assert array(found["figure"]["data"][0]["x"]).tolist() == list(range(1, 10))


@pytest.mark.parametrize("query", ["start=500", "start=0&stop=1", "rank=2"])
def test_nothing_to_show_says_so(phased: Run, query: str) -> None:
    found = figure(phased, query)
    assert found["figure"]["data"] == [] and found["meta"]["empty"]
    assert found["meta"]["dominant"] is None


def test_a_run_that_knows_no_phases(run: Run) -> None:
    known = catalogue(1)
    run.post(opening(known), batch(known, 0, range(20), series={"step_time_s": 0.2}))
    found = figure(run)
    assert found["figure"]["data"] == [] and len(found["meta"]["unknown"]) == 6
