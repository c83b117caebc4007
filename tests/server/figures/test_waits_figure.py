"""The figures `waits` and `series`: who waited how long at which step, read in bounded pieces; a series by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import Samples
from rangewatch_server.collectives import reader
from rangewatch_server.figures.base import Params
from rangewatch_server.figures.heatmaps import waits
from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
RANKS, STEPS, A_BATCH, LATE = 3, 1_000, 50, 1
DELAY_S = 0.030
SECOND = 10**9
ODD = "grad norm/é?&"
GROUP = {"name": "0", "hash": "abc", "ranks": list(range(RANKS)), "desc": "default_pg"}

NO_MESH: Any = SimpleNamespace(
    ranks={}, newest_events=lambda kinds: [], made_of_newest=lambda kind, make: make(NO_MESH)
)
"""A run whose ranks say nothing of where they stand."""


def collectives(rank: int, steps: np.ndarray) -> Samples:
    """One all_reduce a step. At each step from 500 on rank 1 comes 30 ms late."""
    took = 0.001 + np.where((steps >= 500) & (rank != LATE), DELAY_S, 0.0)
    one = np.ones(len(steps))
    columns = {
        "step": steps, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 1024 * one, "sequence": steps,
        "duration_s": took, "is_symmetric": one,
    }  # fmt: skip
    at = rank * 3_600 * SECOND + 10**18 + steps * SECOND // 5
    about = {"groups": [GROUP], "ops": ["all_reduce"], "dtypes": ["float32"]}
    return Samples("collective", "", at, {name: np.asarray(each, float) for name, each in columns.items()}, about)


@pytest.fixture(scope="module")
def waiting(module_run: Run) -> Run:
    """Three ranks, 1,000 steps."""
    for rank in range(RANKS):
        module_run.post(opening(KNOWN, rank=rank, world_size=RANKS))
        for sequence, first in enumerate(range(0, STEPS, A_BATCH)):
            steps = np.arange(first, first + A_BATCH)
            values = np.where(steps == 777, np.nan, steps * 1.0 + rank)
            sent = batch(KNOWN, sequence, steps, rank=rank, series={ODD: values, "loss": 1.0})
            assert (
                module_run.post(msgspec.structs.replace(sent, samples=(collectives(rank, steps),))).status_code == 202
            )
    return module_run


def figure(run: Run, query: str = "", name: str = "waits") -> dict[str, Any]:
    found: dict[str, Any] = run.get(f"/figures/{name}?{query}")
    valid(found["figure"])
    return found


def waited(found: dict[str, Any]) -> np.ndarray:
    return array(found["figure"]["data"][0]["z"])


def test_few_steps_are_read_whole(waiting: Run) -> None:
    found = figure(waiting, "start=450&stop=550")
    z, cost = waited(found), array(found["meta"]["cost_to_others_s"])
    assert found["meta"]["is_whole"] and z.shape == cost.shape == (RANKS, 100)
    late = np.arange(450, 550) >= 500
    for rank in range(RANKS):
        np.testing.assert_allclose(z[rank], np.where(late & (rank != LATE), DELAY_S, 0.0), atol=1e-6)
    np.testing.assert_allclose(cost[LATE], np.where(late, (RANKS - 1) * DELAY_S, 0.0), atol=1e-6)
    assert [row["rank"] for row in found["meta"]["rows"]] == [0, 1, 2]
    assert found["meta"]["note"] == "each column: one step"


def test_merged_columns_hold_the_longest_wait(waiting: Run) -> None:
    found = figure(waiting, "start=480&stop=520&columns=5")
    z = waited(found)
    trace = found["figure"]["data"][0]
    at = trace["x0"] + np.arange(z.shape[1]) * trace["dx"]
    first = int(np.flatnonzero(at + trace["dx"] / 2 > 500)[0])
    assert (z[0, :first] < 0.001).all() and (z[0, first:] > 0.029).all()
    assert found["meta"]["note"].startswith("each column: worst of")


def test_of_a_long_run_a_step_of_each_column_is_read(waiting: Run) -> None:
    found = figure(waiting)
    z, meta = waited(found), found["meta"]
    assert not meta["is_whole"] and z.shape[1] <= waits.LOOKS and "one step looked at" in meta["note"]
    assert np.isfinite(z).all()
    last = (np.arange(z.shape[1]) + 1) * meta["steps_per_column"] - 1
    np.testing.assert_allclose(z[0], np.where(np.minimum(last, STEPS - 1) >= 500, DELAY_S, 0.0), atol=1e-6)


def test_what_is_read_is_bounded() -> None:
    """With a thousand ranks there are few columns; a window is never more than what the page of collectives reads."""
    assert [waits._looks(ranks) for ranks in (0, 1, 8, 32, 1_024)] == [48, 48, 48, 24, 12]
    assert reader.MOST_STEPS == 200


def test_a_rank_alone_and_many_merged(waiting: Run) -> None:
    one = figure(waiting, "start=600&stop=610&rank=2")
    assert [row["label"] for row in one["meta"]["rows"]] == ["rank 2"]
    np.testing.assert_allclose(waited(one), DELAY_S, atol=1e-6)
    merged = figure(waiting, "start=600&stop=610&rows=1")
    assert [row["label"] for row in merged["meta"]["rows"]] == ["ranks 0-2"]
    np.testing.assert_allclose(waited(merged), DELAY_S, atol=1e-6)


def test_without_collectives_nothing_is_known(run: Run) -> None:
    run.post(opening(KNOWN), batch(KNOWN, 0, range(20)))
    found = figure(run)
    assert found["meta"]["empty"] == "no collectives were recorded"
    assert not np.isfinite(waited(found)).any()


def test_a_series_by_its_name(waiting: Run) -> None:
    answer = waiting.ask("/figures/series", params={"q": ODD, "start": 770, "stop": 780})
    found = answer.json()
    (line,) = found["figure"]["data"]
    x, y = array(line["x"]), array(line["y"])
    assert line["name"] == ODD and 777 not in x.tolist() and len(x) == 9
    np.testing.assert_allclose(y, x + 1)  # the mean of ranks 0 to 2
    assert found["meta"]["nonfinite_steps"] == [777] and found["meta"]["empty"] is None


def test_a_series_that_nobody_recorded(waiting: Run) -> None:
    found = figure(waiting, "q=lr", name="series")
    assert found["meta"]["empty"] == "no series of this name was recorded"
    assert array(found["figure"]["data"][0]["x"]).size == 0


def test_of_a_thousand_ranks_the_straggler_has_a_row_of_its_own() -> None:
    """It is the one that does not wait: merged by the worst with others it would vanish."""
    ranks, late = tuple(range(1_024)), 69
    cells = np.full((waits.LAYERS, 1_024, 5), 0.02)
    cells[1:] = 0.0
    cells[:, late] = np.array([0.0, 0.02 * 1_023, 0.02])[:, None]
    cells[:, 700] = np.nan
    rows, (wait_s, cost_s, delay_s), spread = waits._rows(NO_MESH, cells, Params(start=0, stop=5, ranks=ranks))
    assert [(row["label"], row["rank"]) for row in rows] == [("rank 69", 69), ("1,023 others", None)]
    np.testing.assert_allclose(wait_s, [[0.0] * 5, [0.02] * 5])
    np.testing.assert_allclose(delay_s[:, 0], [0.02, 0.0])
    assert cost_s[0, 0] > 20 and spread == "; 1,023 others: median, 5-95 % 20 ms to 20 ms"
    equal = np.full_like(cells, 0.02)
    rows, _, _ = waits._rows(NO_MESH, equal, Params(start=0, stop=5, ranks=ranks))
    assert [row["label"] for row in rows] == ["1,024 ranks"]


def test_a_straggler_has_been_one_since_it_began_whichever_steps_are_asked_for(waiting: Run) -> None:
    """It is late from step 500 on; the verdict looks at the last 200 steps, of which the first was called its begin."""
    for query in ("", "?start=700", "?start=600&stop=900", "?start=820", "?start=100&stop=800"):
        verdict = waiting.get(f"/collectives{query}")["verdict"]
        assert (verdict["rank"], verdict["since_step"]) == (LATE, 500), query
        assert "since step 500:" in verdict["text"] and "or before" not in verdict["text"]
