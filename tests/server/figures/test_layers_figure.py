"""The layers' figures: statistics, closed modules, orders and the tree, each against numbers worked out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.statistics.dtype_limits import LIMITS
from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.figures.heatmaps.heatmap import STATISTICS, Cells, held
from rangewatch_server.figures.heatmaps.rows import MOST_LEVELS, modules_of, natural, worst_first
from rangewatch_server.figures.module_tree import Node, kept
from rangewatch_server.numerics.headroom import State
from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, opening

STEPS = 100
NAMES = [
    ("m.2.ff", "output"),
    ("m.10.ff", "output"),
    ("m.2.attn", "output"),
    ("m.2.ff", "grad_output"),
    ("head", "output"),
]
FULL_EVERY = 10
SMALLEST = LIMITS["float16"].smallest_normal
BAD = (1, 41)  # an Inf in m.10.ff
SPIKE_AT, NAN_AT = 77, 43


def known() -> Catalogue:
    entries = (TensorEntry(name, kind, 0, "float16", (8, 4), i, "Linear") for i, (name, kind) in enumerate(NAMES))
    return Catalogue(statistics.ALL, tuple(entries))


def columns(rank: int) -> dict[str, Any]:
    """amax 2^(tensor+rank); a full set every 10 steps: 32 elements, zeros 1 + tensor + rank, amin 2^-(8+tensor)."""
    tensor = np.arange(len(NAMES))[:, None] * np.ones((1, STEPS))
    is_full = np.arange(STEPS)[None] % FULL_EVERY == 0
    bad = np.zeros((len(NAMES), STEPS))
    if rank == 0:
        bad[BAD] = 3
    return {
        "amax": 2.0 ** (tensor + rank), "inf_count": bad,
        "full_numel": np.where(is_full, 32.0, 0.0), "zero_count": np.where(is_full, 1 + tensor + rank, 0.0),
        "subnormal_count": np.where(is_full, 2.0, 0.0), "sum_sq": np.where(is_full, 32 * 4.0**tensor, 0.0),
        "amin": np.where(is_full, 2.0 ** -(8 + tensor), np.inf),
        "moved_count": np.where(is_full, 16.0, 0.0), "eps_count": np.where(is_full, 4 + tensor + rank, 0.0),
        "lost_count": np.where(is_full, 2.0 + rank, 0.0),
    }  # fmt: skip


@pytest.fixture(scope="module")
def layered(module_run: Run) -> Run:
    for rank in (0, 1):
        assert module_run.post(opening(known(), rank=rank, world_size=2)).status_code == 202
        assert module_run.post(batch(known(), 0, range(STEPS), columns(rank), rank=rank)).status_code == 202
    return module_run


def figure(run: Run, name: str, query: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """z, states and meta; the figure is one that Plotly takes."""
    found = run.get(f"/figures/{name}?{query}")
    return array(valid(found["figure"])["data"][0]["z"]), array(found["meta"]["states"]), found["meta"]


def labels(meta: dict[str, Any]) -> list[str]:
    return [row["label"] for row in meta["rows"]]


@pytest.mark.parametrize(
    ("statistic", "value"),
    [
        ("headroom_bits", lambda tensor: math.log2(65504) - tensor - 1),
        ("floor_room_bits", lambda tensor: -(8 + tensor) - math.log2(SMALLEST)),
        ("amax", lambda tensor: tensor + 1),
        ("amin", lambda tensor: -(8 + tensor)),
        ("rms", lambda tensor: tensor),
        ("zero_fraction", lambda tensor: (2 + tensor) / 32),
        ("subnormal_fraction", lambda _: 2 / 32),
        ("nonfinite_count", lambda _: 0.0),
        ("eps_fraction", lambda tensor: (5 + tensor) / 16),
        ("lost_fraction", lambda _: 3 / 16),
    ],
)
def test_each_statistic_is_the_worst_of_the_ranks(layered: Run, statistic: str, value: Any) -> None:
    z, states, meta = figure(layered, "layers", f"statistic={statistic}")
    assert meta["statistic"]["name"] == statistic
    wanted = np.array([[value(tensor)] for tensor in range(len(NAMES))]) * np.ones((1, STEPS))
    shown = states == State.VALUE
    assert shown.sum() == len(NAMES) * STEPS - 1
    np.testing.assert_allclose(z[shown], wanted[shown], atol=1e-4)
    assert states[BAD] == State.INF
    if statistic == "nonfinite_count":
        assert z[BAD] == pytest.approx(2.0)  # log2(1 + 3)
    else:
        assert np.isnan(z[BAD])


def test_rows_of_merged_columns_name_the_exact_step_of_their_worst(small: Run) -> None:
    """Of the rows that are asked for, the worst first; each column of the figure holds eight steps."""
    for name, wanted in (
        ("layers&places=3", [SPIKE_AT, NAN_AT, None, NAN_AT]),
        ("layers&places=1", [None, NAN_AT, None, None]),  # of rows that were first in one column the first
        ("timeline&places=3&rank=0", [NAN_AT]),
    ):
        figure_name, _, query = name.partition("&")
        _, _, meta = figure(small, figure_name, f"columns=10&{query}")
        assert meta["steps_per_column"] >= 8
        assert [row.get("step") for row in meta["rows"]] == wanted
    _, _, every = figure(small, "layers", "columns=10&places=2&closed=m&statistic=amax")
    assert "step" not in every["rows"][0], "of headroom alone"
    _, _, closed = figure(small, "layers", "columns=10&places=2&closed=m")
    assert closed["rows"][0]["step"] == NAN_AT


@pytest.fixture(scope="module")
def small(module_run: Run) -> Run:
    """Four layers: one with a hot step, one with a NaN that comes again, one that is calm, one with a NaN and large."""
    entries = (TensorEntry(f"m.{i}", "output", 0, "float16", (8, 4), i, "Linear") for i in range(4))
    four = Catalogue(statistics.ALL, tuple(entries))
    amax, nans = np.ones((4, STEPS)), np.zeros((4, STEPS))
    amax[0, SPIKE_AT], nans[1, [NAN_AT, NAN_AT + 2, 90]] = 30_000, 1
    amax[3], nans[3, NAN_AT] = 20_000, 1
    of_run = Run(module_run.server, f"{module_run.name} small")
    assert of_run.post(opening(four), batch(four, 0, range(STEPS), {"amax": amax, "nan_count": nans})).is_success
    return of_run


def test_all_that_the_shelf_has_is_tested_and_an_unknown_one_is_refused(layered: Run) -> None:
    answer = layered.ask("/figures/layers?statistic=nope")
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter")
    assert all(each in answer.json()["error"] for each in STATISTICS) and len(STATISTICS) == 10


def test_what_is_measured_now_and_then_is_drawn_until_the_next_time(layered: Run) -> None:
    z, _, meta = figure(layered, "layers", "statistic=zero_fraction&rank=0")
    assert "measured every 10 steps" in meta["note"]
    assert not np.isnan(z[0]).any()
    fine, _, short = figure(layered, "layers", "statistic=zero_fraction&rank=0&start=11&stop=19")
    assert np.isnan(fine).all() and "measured" not in short["note"]


def test_merged_columns_keep_the_worst_and_no_mean(layered: Run) -> None:
    z, _, meta = figure(layered, "layers", "statistic=zero_fraction&columns=4")
    assert meta["steps_per_column"] > 8
    assert np.nanmax(z[4]) == pytest.approx(6 / 32)
    headroom, _, _ = figure(layered, "layers", "columns=4&rank=1")
    assert headroom[0, 0] == pytest.approx(math.log2(65504) - 1, abs=1e-4)


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("call", ["m.2.ff output", "m.10.ff output", "m.2.attn output", "m.2.ff grad_output", "head output"]),
        ("name", ["head output", "m.2.attn output", "m.2.ff output", "m.2.ff grad_output", "m.10.ff output"]),
        ("worst", ["m.10.ff output", "head output", "m.2.ff grad_output", "m.2.attn output", "m.2.ff output"]),
    ],
)
def test_rows_stand_in_the_order_asked_for(layered: Run, sort: str, wanted: list[str]) -> None:
    z, states, meta = figure(layered, "layers", f"sort={sort}")
    assert labels(meta) == wanted
    assert states[wanted.index("m.10.ff output"), BAD[1]] == State.INF
    assert z[wanted.index("head output"), 0] == pytest.approx(math.log2(65504) - 5, abs=1e-4)


def test_a_closed_module_is_one_row_with_the_worst_inside(layered: Run) -> None:
    z, _, meta = figure(layered, "layers", "closed=m.2")
    assert [(row["label"], row["count"], row.get("module")) for row in meta["rows"]] == [
        ("m.2.*", 3, "m.2"), ("m.10.ff output", 1, None), ("head output", 1, None),
    ]  # fmt: skip
    assert z[0, 0] == pytest.approx(math.log2(65504) - 4, abs=1e-4)  # that of m.2.ff grad_output on rank 1
    outer, states, meta = figure(layered, "layers", "closed=m.2&closed=m&sort=worst")
    assert labels(meta) == ["m.*", "head output"]
    assert states[0, BAD[1]] == State.INF and outer.shape == (2, STEPS)
    place = layered.get("/locate?module=m.2")
    assert (place["tensor"], place["rank"]) == (3, 1)


def test_rows_that_are_no_range_list_their_tensors(layered: Run) -> None:
    _, _, meta = figure(layered, "layers", "sort=name&rows=2")
    assert [row["listed"] for row in meta["rows"]] == [[4, 2, 0], [3, 1]]
    assert layered.get("/locate?tensor=0,2&rank=0")["tensor"] == 2
    plain = figure(layered, "layers", "rows=2")[2]
    assert all("listed" not in row for row in plain["rows"])


def test_the_tree_has_the_worst_of_each_module(layered: Run) -> None:
    meta = figure(layered, "layers", "tree=100")[2]
    found = {each["path"]: (each["depth"], each["count"], each["state"], each["tensor"]) for each in meta["modules"]}
    assert found == {
        "m": (0, 4, "inf", None), "m.2": (1, 3, "value", None), "m.2.ff": (2, 2, "value", None),
        "m.2.attn": (2, 1, "value", 2), "m.10.ff": (1, 1, "inf", 1),
        "head": (0, 1, "value", 4),
    }  # fmt: skip
    assert [each["path"] for each in meta["modules"]][:3] == ["m", "m.2", "m.2.ff"]
    worst = {each["path"]: each["worst"] for each in meta["modules"]}
    assert worst["m.2"] == pytest.approx(math.log2(65504) - 4, abs=1e-4)
    few = figure(layered, "layers", "tree=2")[2]["modules"]
    assert [(each["path"], each["has_children"], each["hidden_children"]) for each in few] == [
        ("m", False, 2), ("head", False, 0),
    ]  # fmt: skip
    assert "modules" not in figure(layered, "layers", "")[2]


def test_steps_by_ranks_of_the_chosen_layers(layered: Run) -> None:
    z, _, meta = figure(layered, "timeline", "q=m.2.*")
    assert labels(meta) == ["rank 0", "rank 1"]
    np.testing.assert_allclose(z[:, 0], [math.log2(65504) - 3, math.log2(65504) - 4], atol=1e-4)
    of_one, states, _ = figure(layered, "timeline", "tensor=1")
    assert states[:, BAD[1]].tolist() == [State.INF, State.VALUE]
    assert of_one[1, 0] == pytest.approx(math.log2(65504) - 2, abs=1e-4)
    amax, _, _ = figure(layered, "timeline", "statistic=amax&kind=output")
    assert amax[:, 0].tolist() == [4.0, 5.0]
    whole, _, _ = figure(layered, "timeline", "")
    every, _, _ = figure(layered, "timeline", "q=*")
    np.testing.assert_allclose(whole, every, atol=1e-4)


def test_layers_by_ranks_at_one_step_and_over_steps(layered: Run) -> None:
    z, states, meta = figure(layered, "ranks", "start=41&stop=42&sort=name&closed=m.2&statistic=amax&tree=9")
    assert [each["label"] for each in meta["tensors"]] == ["head output", "m.2.*", "m.10.ff output"]
    assert meta["units"] == 3
    assert states[:, 2].tolist() == [State.INF, State.VALUE]
    np.testing.assert_allclose(z[:, :2], [[4, 3], [5, 4]])
    assert meta["modules"][0]["path"] == "m"
    assert figure(layered, "ranks", "start=42&stop=100")[1][0, 1] == State.VALUE
    assert figure(layered, "ranks", "")[1][0, 1] == State.INF


REFUSED = ["sort=nope", "tree=501", "tree=-1", "q=a%20|", "closed=" + "x" * 4097, "&".join(["closed=a"] * 201)]


def test_what_cannot_be_is_refused(layered: Run) -> None:
    asked = [f"figures/{name}?{query}" for name in ("layers", "ranks") for query in REFUSED]
    for path in (*asked, "tensors?q=a|", "locate?q=a|", "locate?tensor=1,x", "slice?axes=step,tensor&q=a|"):
        answer = layered.ask(f"/{path}")
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter"), path


def test_nothing_left_is_an_empty_figure(layered: Run) -> None:
    for name in ("layers", "timeline", "ranks"):
        answer = layered.ask(f"/figures/{name}?q=no-such-name&sort=worst&closed=m&tree=9")
        assert answer.status_code == 200, answer.text


def test_names_sort_by_the_numbers_in_them() -> None:
    assert sorted(["b.10", "b.9", "b", "a.1x", "b.9.x"], key=natural) == ["a.1x", "b", "b.9", "b.9.x", "b.10"]


def test_the_worst_rows_first_whatever_is_not_known() -> None:
    nan = np.nan
    cells = Cells(
        np.array([[5, nan], [np.inf, np.inf], [3, 9], [1, 1], [1, 1], [nan, nan]], np.float32),
        np.array([[0, 0], [4, 4], [0, 0], [0, 3], [2, 0], [5, 5]], np.uint8),
    )
    assert worst_first(cells).tolist() == [4, 3, 2, 0, 1, 5]


def test_a_value_is_held_only_over_columns_that_have_none() -> None:
    bits = np.full((2, 6), np.nan, np.float32)
    bits[0, [0, 3]], bits[1, 0] = [1, 2], 7
    state = np.zeros((2, 6), np.uint8)
    state[1, 1] = State.NAN
    state[1, 2] = State.NOT_OBSERVED
    found, note = held(Cells(bits, state), 8)
    assert note == "measured every 24 steps, and drawn until the next time"
    np.testing.assert_array_equal(found.bits[0], [1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(found.bits[1], [7, np.nan, np.nan, np.nan, np.nan, np.nan])


def test_what_was_measured_once_is_drawn_from_there_on() -> None:
    bits = np.array([[np.nan, 3, np.nan, np.nan]], np.float32)
    found, note = held(Cells(bits, np.zeros((1, 4), np.uint8)), 1)
    assert note == "measured once in these steps, and drawn from there on"
    np.testing.assert_array_equal(found.bits, [[np.nan, 3, 3, 3]])


def test_a_name_of_thousands_of_dots_has_a_bounded_depth() -> None:
    levels = modules_of("a." * 2_000 + "b")
    assert len(levels) == MOST_LEVELS and levels[-1] == "a." * 2_000 + "b"
    assert levels[:2] == ["a", "a.a"]


def test_a_tree_that_does_not_fit_keeps_its_outer_levels() -> None:
    leaves = [Node(f"a.{i}", 1, [i]) for i in range(5)]
    roots = [Node("a", 0, list(range(5)), leaves), Node("b", 0, [5], [Node("b.0", 1, [5])])]
    assert [node.path for node in kept(roots, 4)] == ["a", "b", "b.0"]
    assert [node.path for node in kept(roots, 8)] == ["a", "a.0", "a.1", "a.2", "a.3", "a.4", "b", "b.0"]
    assert kept(roots, 1) == []


def test_blocks_of_a_large_model_begin_closed_where_that_is_left_to_the_server(run: Run) -> None:
    names = ["embed", *(f"model.layers.{block}.{part}" for block in range(40) for part in ("q", "k", "v", "o")), "head"]
    entries = (TensorEntry(name, "output", 0, "float16", (8,), at, "Linear") for at, name in enumerate(names))
    large = Catalogue(statistics.ALL, tuple(entries))
    assert run.post(opening(large)).status_code == 202
    assert run.post(batch(large, 0, range(4), {"amax": np.full((len(names), 4), 4.0)})).status_code == 202
    *_, meta = figure(run, "layers", "closed=*")
    assert meta["closed"] == [f"model.layers.{block}" for block in range(40)]
    assert [row["label"] for row in meta["rows"]][:3] == ["embed output", "model.layers.0.*", "model.layers.1.*"]
    *_, meta = figure(run, "layers", "")
    assert "closed" not in meta and len(meta["rows"]) == len(names)
    *_, meta = figure(run, "layers", "closed=*&q=in:model.layers.3")
    assert "closed" not in meta and len(meta["rows"]) == 4
