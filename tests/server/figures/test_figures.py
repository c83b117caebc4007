"""Figures and pages' data: names and arrays, the numbers behind them, and the spike in 100,000 steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.statistics.dtype_limits import LIMITS
from rangewatch.wire.records import StreamHeader
from rangewatch_server import figures
from rangewatch_server.figures.base import grid
from rangewatch_server.figures.heatmaps.rows import group_label
from rangewatch_server.numerics.headroom import State
from tests.long_run import SPIKE_STEP, SPIKE_TENSOR, build
from tests.server.plots import array, valid
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening


@pytest.fixture(scope="module")
def small(module_run: Run) -> Run:
    """One rank of 200 steps x 6 tensors in which each state appears; a second that goes silent at step 99."""
    known = catalogue(6)
    amax = np.full((6, 200), 1024.0)
    amax[1, 50], amax[2, 60:], amax[5] = 40_000.0, 0.0, 65504 / 2**0.5
    columns = {
        "amax": amax,
        "inf_count": np.zeros((6, 200)),
        "nan_count": np.zeros((6, 200)),
        "call_count": np.ones((6, 200)),
    }
    columns["inf_count"][3, 120], columns["nan_count"][4, 130] = 1, 2
    columns["call_count"][0, 10:20] = columns["amax"][0, 10:20] = 0
    series = {"loss": 2.0, "loss_scale": 1024.0, "skipped_step": np.arange(200) == 121, "step_time_s": 0.25}
    module_run.post(opening(known, world_size=3), batch(known, 0, range(200), columns, series=series))
    module_run.post(opening(known, rank=1, world_size=3), batch(known, 0, range(100), rank=1))
    return module_run


@pytest.mark.parametrize("columns", [200, 70, 25, 7, 1])
def test_a_tensors_points_know_their_exact_step(small: Run, columns: int) -> None:
    """Of a point of several steps the page shows the step that made it, at every zoom and width."""
    spike = small.get(f"/figures/tensor?tensor=1&rank=0&columns={columns}")
    amax = array(spike["figure"]["data"][0]["y"])
    steps = spike["meta"]["steps"]["amax"]
    assert len(steps) == amax.size and steps[int(amax.argmax())] == 50
    broken = small.get(f"/figures/tensor?tensor=3&rank=0&columns={columns}")
    assert broken["meta"]["steps"]["non-finite"] == [120]


QUERIES = ["", "&columns=7&rows=2", "&start=40&stop=130&rank=0", "&q=no-such-name", "&start=500", "&kind=grad"]


@pytest.mark.parametrize("figure", figures.ALL, ids=lambda figure: figure.name)
def test_every_figure_is_names_and_arrays(small: Run, figure: figures.Figure) -> None:
    for query in QUERIES:
        found = small.get(f"/figures/{figure.name}?tensor=3{query}")
        valid(found["figure"])
        assert {"start", "stop", "steps_per_column", "columns", "level", "note", "unit", "scale"} <= set(
            found["meta"]
        ), query


def test_every_figure_is_listed(served: Server) -> None:
    listed = served.get("/api/v1/figures")["figures"]
    assert [each["name"] for each in listed] == [each.name for each in figures.ALL]


def test_heatmap_cells_are_headroom_in_bits(small: Run) -> None:
    found = small.get("/figures/layers?rank=0")
    bits, states = array(found["figure"]["data"][0]["z"]), array(found["meta"]["states"])
    assert bits.shape == states.shape == (6, 200)
    assert bits[0, 0] == pytest.approx(math.log2(65504 / 1024), abs=1e-5)
    assert bits[1, 50] == pytest.approx(math.log2(65504 / 40_000), abs=1e-5)
    expected = np.full((6, 200), State.VALUE)
    expected[1, 50] = expected[5] = State.SATURATED
    expected[2, 60:], expected[0, 10:20] = State.ZERO, State.NOT_OBSERVED
    expected[3, 120], expected[4, 130] = State.INF, State.NAN
    assert (states == expected).all()
    assert (np.isnan(bits) == ~np.isin(expected, (State.VALUE, State.SATURATED))).all()
    assert found["meta"]["nonfinite_columns"] == [120, 130]


def test_pooled_columns_and_rows_show_the_worst(small: Run) -> None:
    found = small.get("/figures/layers?rank=0&columns=20&rows=3")
    states = array(found["meta"]["states"])
    assert states.shape == (3, found["meta"]["columns"])
    assert [row["count"] for row in found["meta"]["rows"]] == [2, 2, 2]
    per = found["meta"]["steps_per_column"]
    assert (states[1, 120 // per], states[2, 130 // per], states[0, 50 // per]) == (
        State.INF,
        State.NAN,
        State.SATURATED,
    )


def test_a_silent_rank_is_stale_not_clean(small: Run) -> None:
    detail = small.get()
    assert detail["missing_ranks"] == [2]
    assert detail["world_size"] == 3


def test_step_marks_the_first_nonfinite(small: Run) -> None:
    step = small.get("/step?step=120&rank=0")
    assert step["first_nonfinite"] == 3
    assert step["frames"][3]["state"] == "inf"
    assert step["frames"][3]["amin"] is None
    assert step["frames"][3]["full"] is False
    assert (step["previous_nonfinite_step"], step["next_nonfinite_step"]) == (None, 130)
    assert step["report"].startswith("Detected inf/nan during batch_number=120")
    assert step["report"].splitlines()[-1].split() == ["-", "inf", "output"]
    assert small.get("/step?step=121&rank=0")["skipped"] is True
    assert small.get("/step?step=199&rank=0")["previous_nonfinite_step"] == 130
    empty = small.get("/step?step=5000&rank=0")
    assert (empty["observed"], empty["frames"]) == (False, [])


def test_first_overflow_and_verdict(small: Run) -> None:
    detail = small.get()
    assert detail["first_overflow"] | {"x": 0} == {
        "step": 120, "rank": 0, "tensor": 3, "fqn": "blocks.3.ff", "kind": "output", "index": 0, "what": "inf", "x": 0,
    }  # fmt: skip
    words = "".join(text for _, text in detail["verdict"]["parts"])
    assert words.startswith("NaN or Inf. Step 120, rank 0: the output of blocks.3.ff is the first to hold Inf.")
    assert "Its headroom was 6.0 bits at step 119 and 6.0 bits at step 20." in detail["verdict"]["chain"]


BAD = [
    ("/api/v1/runs/999999999", 404, "unknown_run"),
    ("/api/v1/runs/99999999999999999999999", 404, "unknown_run"),
    ("/api/v1/runs/abc", 422, "bad_parameter"),
    ("step?rank=9", 404, "unknown_rank"),
    ("step?rank=all", 422, "bad_parameter"),
    ("figures/nope", 404, "unknown_figure"),
    ("figures/layers?columns=0", 422, "bad_parameter"),
    ("figures/layers?columns=2001", 422, "bad_parameter"),
    ("figures/layers?rank=-1", 422, "bad_parameter"),
    ("figures/layers?kind=nope", 422, "bad_parameter"),
    ("figures/tensor", 404, "unknown_tensor"),
    ("figures/tensor?tensor=99", 404, "unknown_tensor"),
    ("locate?start=300&stop=400", 404, "nothing_there"),
    ("locate?tensor=x-y", 422, "bad_parameter"),
    ("/api/v1/nope", 404, "not_found"),
]


def test_bad_questions_get_one_line(small: Run) -> None:
    for path, status, code in BAD:
        answer = small.server.client.get(path if path.startswith("/api") else small.path(f"/{path}"))
        assert (answer.status_code, answer.json()["code"]) == (status, code), path
        assert len(answer.json()["error"].splitlines()) == 1, path


def test_a_grid_never_has_more_columns_than_asked() -> None:
    some = 1, 7, 64, 999, 1_000, 1_001, 12_345, 100_000, 10**6, 10**9
    for steps, columns, start in itertools.product(some, (1, 37, 1_000, 2_000), (0, 1, 63, 64, 10**7 + 5)):
        cut, case = grid(start, start + steps, columns), (start, steps, columns)
        assert cut.width <= max(columns, 2), case
        assert cut.per % 8**cut.level == 0, case
        assert cut.per == 1 or cut.width > columns // 20 or steps < 64, case


def test_a_coarser_level_is_read_where_it_costs_half_the_columns_and_no_more() -> None:
    assert [grid(0, per * 100, 100).level for per in (3, 4, 31, 32)] == [0, 1, 1, 2]


def test_dtype_limits_are_torchs() -> None:
    import torch

    for name, limits in LIMITS.items():
        info = torch.finfo(getattr(torch, name))
        assert limits.max_finite == info.max, name
        assert limits.smallest_normal == info.smallest_normal, name


@pytest.mark.slow
def test_one_spike_in_100_000_steps_is_in_the_figure_and_one_click_away(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    build(tmp_path / "a.db")
    server = start_server(db=str(tmp_path / "a.db"))
    for columns in (300, 1_000, 2_000):
        meta = server.get(f"/api/v1/runs/1/figures/layers?columns={columns}&rows=1000")["meta"]
        hot = np.argwhere(array(meta["states"]) == State.INF)
        per = meta["steps_per_column"]
        column = SPIKE_STEP // per
        assert hot.tolist() == [[SPIKE_TENSOR, column]], columns
        assert meta["nonfinite_columns"] == [column], columns
        place = server.get(f"/api/v1/runs/1/locate?start={column * per}&stop={column * per + per}")
        assert (place["step"], place["tensor"], place["state"]) == (SPIKE_STEP, SPIKE_TENSOR, "inf"), columns


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.b.c", "a.b.d"], "a.b.*"),
        (["a.b", "a.bc"], "a.*"),
        (["a.b", "a.b.c"], "a.b.*"),
        (["a", "b"], "a to b"),
        (["", ""], "(model)"),
        (["x.y", "x.y"], "x.y"),
    ],
)
def test_a_row_of_several_is_named_for_what_they_share(names: list[str], expected: str) -> None:
    assert group_label(names) == expected


def test_merged_steps_are_shown_as_whole_columns(run: Run) -> None:
    """No column is narrower than the steps that one row stands for, and none of them looks unobserved."""
    known = catalogue(3)
    first = opening(known)
    run.post(StreamHeader(msgspec.structs.replace(first.info, ship_every=8), known))
    amax = np.ones((3, 6))
    amax[1, 4] = 30_000.0
    run.post(batch(known, 0, [7, 15, 23, 31, 39, 42], {"amax": amax, "call_count": 8.0}))
    for query in ("", "&start=3", "&start=30&stop=31"):
        meta = run.get(f"/figures/layers?rank=0{query}")["meta"]
        assert (meta["steps_per_column"], meta["start"] % 8) == (8, 0)
        assert (array(meta["states"]) == State.VALUE).all()
    assert array(run.get("/figures/tensor?tensor=1&rank=0")["figure"]["data"][0]["x"]).size == 6
    for step in (32, 36, 39):
        frames = run.get(f"/step?rank=0&step={step}")["frames"]
        assert [frame["amax"] for frame in frames] == [1.0, 30_000.0, 1.0] and frames[0]["call_count"] == 8
    assert run.get("/locate?rank=0")["step"] == 39


def test_moments_beside_eps_are_shares_of_what_moves(served: Server) -> None:
    """Of ranks together; of other kinds, and of agents that know no such statistics, nothing."""
    known = catalogue(2, dtype="float32", kinds=("exp_avg_sq", "exp_avg"))
    names = {each.name for each in statistics.BESIDE_EPS}
    older = msgspec.structs.replace(known, statistics=tuple(s for s in known.statistics if s.name not in names))
    counts = {"full_numel": 32.0, "moved_count": 16.0, "lost_count": 2.0}
    served.post(opening(known, run="moments", world_size=2))
    served.post(opening(known, run="moments", rank=1, world_size=2))
    served.post(batch(known, 0, range(3), counts | {"eps_count": 4.0}, run="moments"))
    served.post(batch(known, 0, range(3), counts | {"eps_count": 12.0}, run="moments", rank=1))
    served.post(opening(older, run="older"))
    served.post(batch(older, 0, range(3), {"full_numel": 32.0}, run="older"))
    runs = {each["name"]: each["id"] for each in served.get("/api/v1/runs")["runs"]}
    for run, tensor, wanted in (("moments", 0, (50.0, 12.5)), ("moments", 1, None), ("older", 0, None)):
        found = served.get(f"/api/v1/runs/{runs[run]}/figures/moments?tensor={tensor}")
        shares = [array(each["y"]).tolist() for each in found["figure"]["data"]]
        assert shares == [[] if wanted is None else [each] * 3 for each in wanted or (0, 0)], run
