"""Comparisons of steps, ranks and runs, and percentiles over ranks: differences known from the magnitudes sent."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.figures.comparison import compare, losses, pairs
from rangewatch_server.figures.heatmaps.heatmap import Cells
from rangewatch_server.numerics.headroom import State
from rangewatch_server.store.names import tensors_of
from tests.server.plots import array, valid
from tests.server.process import Run, Server
from tests.server.records import batch, opening

STEPS, SHORTER = 200, 120
FLOAT16, BFLOAT16 = 65504.0, 3.3895313892515355e38
NAMES = ("embed", "block.0", "block.1", "block.2", "head")
KNOWN = Catalogue(
    statistics.ALL, tuple(TensorEntry(name, "output", 0, "float16", (4, 8), i) for i, name in enumerate(NAMES))
)
# The other run: block.0 in bfloat16, no block.2, an adapter that the first has not, and another order of calls.
OTHERS = (
    ("head", "float16"),
    ("block.0", "bfloat16"),
    ("adapter", "float16"),
    ("block.1", "float16"),
    ("embed", "float16"),
)
OTHER = Catalogue(
    statistics.ALL, tuple(TensorEntry(name, "output", 0, dtype, (4, 8), i) for i, (name, dtype) in enumerate(OTHERS))
)


def amax(rank: int) -> np.ndarray:
    """Of the first run: (tensors, steps), growing by the step, doubling from tensor to tensor and from rank to rank."""
    tensor, step = np.mgrid[0 : len(NAMES), 0:STEPS]
    return 2.0 ** (tensor + rank + step / 100)


class Two(NamedTuple):
    """Of five tensors on four ranks; and of two ranks, shorter, its `embed` 8 times as large, with NaN and zeros."""

    first: Run
    second: Run

    def ask(self, query: str) -> tuple[np.ndarray, dict[str, Any]]:
        found = self.first.get(f"/figures/comparison?{query}")
        return array(valid(found["figure"])["data"][0]["z"]), found["meta"]


@pytest.fixture(scope="module")
def two(served: Server, module_run: Run) -> Two:
    found = Two(module_run, Run(served, f"{module_run.name}, second"))
    for rank in range(4):
        nan, calls = np.zeros((len(NAMES), STEPS)), np.ones((len(NAMES), STEPS))
        nan[4, 50] = float(rank == 1)
        calls[2, 30:40] = float(rank != 0)
        columns = {"amax": amax(rank) * calls, "nan_count": nan, "call_count": calls}
        found.first.post(opening(KNOWN, rank=rank, world_size=4), batch(KNOWN, 0, range(STEPS), columns, rank=rank))
    for rank in range(2):
        inf, other = np.zeros((len(OTHERS), SHORTER)), np.full((len(OTHERS), SHORTER), 4.0)
        other[4], other[3, 70], inf[0, 90] = 8 * amax(rank)[0, :SHORTER], 0.0, 1
        columns = {"amax": other, "inf_count": inf}
        found.second.post(opening(OTHER, rank=rank, world_size=2), batch(OTHER, 0, range(SHORTER), columns, rank=rank))
    return found


def labels(meta: dict[str, Any]) -> list[str]:
    return [row["label"].removesuffix(" output") for row in meta["rows"]]


def test_ranks_differ_by_the_bits_between_their_magnitudes(two: Two) -> None:
    z, meta = two.ask("rank=0&against=rank:2")
    assert labels(meta) == list(NAMES)
    observed = np.ones((5, STEPS), bool)
    observed[2, 30:40] = False
    # Rank 2 holds four times as much: 2 bits less room there, so 2 more here.
    assert z[observed] == pytest.approx(2.0, abs=1e-5)
    assert np.isnan(z[~observed]).all()
    assert (array(meta["states"])[~observed] == State.NOT_OBSERVED).all()
    assert (array(meta["other_states"])[~observed] == State.VALUE).all()
    assert array(meta["bits"])[3, 100] == pytest.approx(math.log2(FLOAT16 / amax(0)[3, 100]), abs=1e-5)
    assert meta["against"]["kind"] == "rank"


def test_a_nan_on_one_side_is_no_difference_and_named(two: Two) -> None:
    z, meta = two.ask("rank=1&against=rank:0")
    states, others = array(meta["states"]), array(meta["other_states"])
    assert (states[4, 50], others[4, 50]) == (State.NAN, State.VALUE)
    assert np.isnan(z[4, 50])
    assert z[4, 51] == pytest.approx(-1.0, abs=1e-5)
    assert meta["nonfinite_columns"] == [50]
    first = meta["losses"][0]
    assert (first["label"], first["start"], first["stop"]) == ("head output", 50, 51)
    assert (first["state"], first["other_state"], first["difference_bits"], first["bits"]) == (
        "nan",
        "value",
        None,
        None,
    )
    swapped = two.ask("rank=0&against=rank:1")[1]
    assert {loss["state"] for loss in swapped["losses"]} == {"value"}  # rank 0 has lost nothing to its NaN


def test_a_step_is_compared_with_every_other(two: Two) -> None:
    z, meta = two.ask("rank=3&against=step:100")
    assert z.shape == (5, STEPS)
    assert z[0, [0, 100, 199]] == pytest.approx([1.0, 0.0, -0.99], abs=1e-5)
    assert meta["losses"][0]["difference_bits"] == pytest.approx(-0.99, abs=1e-5)
    assert meta["losses"][0]["start"] == 199
    two, meta = two.ask("rank=3&start=180&stop=181&against=step:20")
    assert two.shape == (5, 1)
    assert two == pytest.approx(-1.6, abs=1e-5)


def test_runs_are_matched_by_name_whatever_the_order_and_dtype(two: Two) -> None:
    z, meta = two.ask(f"rank=0&against=run:{two.second.id}")
    assert labels(meta) == ["embed", "block.0", "block.1", "head"]
    assert meta["only_here"] == {"count": 1, "labels": ["block.2 output"]}
    assert meta["only_there"] == {"count": 1, "labels": ["adapter output"]}
    assert z[0, :SHORTER] == pytest.approx(3.0, abs=1e-5)
    here, there = math.log2(FLOAT16 / amax(0)[1, 10]), math.log2(BFLOAT16 / 4)
    assert z[1, 10] == pytest.approx(here - there, abs=1e-4)
    assert (meta["losses"][0]["dtype"], meta["losses"][0]["other_dtype"]) == ("float16", "bfloat16")
    others = array(meta["other_states"])
    assert (others[:, SHORTER:] == State.NOT_OBSERVED).all()
    assert np.isnan(z[:, SHORTER:]).all()
    assert (others[2, 70], others[3, 90]) == (State.ZERO, State.INF)
    assert (meta["against"]["run"], meta["against"]["last_step"], meta["last_step"]) == (two.second.name, 119, 199)
    assert (meta["matched"], meta["against"]["ranks"], meta["other_damaged_tiles"]) == (4, 1, 0)


def test_all_ranks_are_compared_with_all_ranks(two: Two) -> None:
    z, meta = two.ask(f"against=run:{two.second.id}&q=embed")
    # The least headroom of each: rank 3 here, rank 1 there.
    assert z[0, :SHORTER] == pytest.approx(3.0 + 1 - 3, abs=1e-5)
    assert meta["against"]["ranks"] == 2


def test_the_only_rank_of_a_run_is_compared_with_the_same_rank_of_one_with_more(two: Two, run: Run) -> None:
    amax = np.full((len(NAMES), STEPS), 2.0)
    run.post(opening(KNOWN), batch(KNOWN, 0, range(STEPS), {"amax": amax}))
    for asked, ranks, bits in (("rank=0&", 1, 0.0), ("rank=all&", 4, 3.0), ("", 4, 3.0)):
        found = run.get(f"/figures/comparison?{asked}against=run:{two.first.id}&q=embed")
        # Rank 0 of the first holds 2 at step 100, its rank 3 eight times as much: 3 bits more room here.
        assert array(found["figure"]["data"][0]["z"])[0, 100] == pytest.approx(bits, abs=1e-5)
        assert found["meta"]["against"]["ranks"] == ranks


def test_columns_of_several_steps_compare_the_worst_of_them(two: Two) -> None:
    z, meta = two.ask(f"rank=0&against=run:{two.second.id}&columns=25&q=embed")
    assert meta["steps_per_column"] == 8
    assert z[0, : SHORTER // 8] == pytest.approx(3.0, abs=1e-5)
    z, meta = two.ask("rank=0&against=step:100&columns=25&q=embed")
    assert z[0, 0] == pytest.approx((100 - 7) / 100, abs=1e-5)  # step 7 has the least headroom of the first eight


def test_a_row_of_several_shows_the_greatest_loss(two: Two) -> None:
    z, meta = two.ask(f"rank=0&against=run:{two.second.id}&rows=2")
    whole, _ = two.ask(f"rank=0&against=run:{two.second.id}")
    assert [row["count"] for row in meta["rows"]] == [2, 2]
    assert z[:, 10] == pytest.approx([whole[:2, 10].min(), whole[2:, 10].min()])
    assert array(meta["other_states"])[1, 90] == State.INF
    assert array(meta["bits"])[0, 10] == pytest.approx(math.log2(FLOAT16 / amax(0)[1, 10]), abs=1e-5)


def test_losses_come_greatest_first(two: Two) -> None:
    meta = two.ask(f"rank=0&against=run:{two.second.id}")[1]
    differences = [loss["difference_bits"] for loss in meta["losses"]]
    assert differences == sorted(differences)
    first, last = meta["losses"][0], meta["losses"][-1]
    assert [(each["tensor"], each["other_tensor"]) for each in (first, last)] == [(1, 1), (0, 4)]


BAD = [
    ("rank:9", 404, "unknown_rank"), ("run:999999999", 404, "unknown_run"),
    ("run:999999999999999", 404, "unknown_run"), ("step:5000", 404, "unknown_step"),
    ("step:-1", 422, "bad_parameter"), ("step:", 422, "bad_parameter"), ("step:1e3", 422, "bad_parameter"),
    ("run:first", 422, "bad_parameter"), ("run:²", 422, "bad_parameter"), ("everything", 422, "bad_parameter"),
    ("x" * 41, 422, "bad_parameter"),
]  # fmt: skip


def test_bad_comparisons_get_one_line(two: Two) -> None:
    for against, status, code in BAD:
        answer = two.first.ask("/figures/comparison", params={"against": against})
        assert (answer.status_code, answer.json()["code"]) == (status, code), against
        assert len(answer.json()["error"].splitlines()) == 1, against


def test_one_rank_needs_the_same_rank_in_the_other_run(two: Two) -> None:
    answer = two.first.ask(f"/figures/comparison?rank=3&against=run:{two.second.id}")
    assert (answer.status_code, answer.json()["error"]) == (404, f"run {two.second.id} has no rank 3")


def test_without_another_side_nothing_is_compared(two: Two) -> None:
    found = two.first.get("/figures/comparison")
    assert (found["figure"]["data"], found["meta"]["against"]) == ([], None)


def test_percentiles_over_ranks_are_those_of_the_known_headroom(two: Two) -> None:
    found = two.first.get("/figures/percentiles?tensor=0")
    valid(found["figure"])
    most = math.log2(FLOAT16 / amax(0)[0, 40])
    at = {
        trace["name"]: dict(zip(array(trace["x"]), array(trace["y"]), strict=True)) for trace in found["figure"]["data"]
    }
    # Four ranks a bit apart: most - 3, - 2, - 1, - 0; linear between them.
    expected = {"least": most - 3, "10 %": most - 2.7, "median": most - 1.5, "90 %": most - 0.3, "most": most}
    assert {name: values[40.0] for name, values in at.items()} == pytest.approx(expected, abs=1e-4)
    assert (found["meta"]["ranks"], found["meta"]["observed_ranks"]) == (4, 4)


def test_percentiles_leave_out_what_has_no_headroom(two: Two) -> None:
    meta, lines = percentiles(two.first, "tensor=4")
    assert meta["nonfinite_steps"] == [50.0]
    assert lines["least"][50.0] == pytest.approx(math.log2(FLOAT16 / amax(3)[4, 50]), abs=1e-5)
    meta, lines = percentiles(two.first, "tensor=2")  # rank 0 was not observed in steps 30-39
    assert lines["most"][35.0] == pytest.approx(math.log2(FLOAT16 / amax(1)[2, 35]), abs=1e-5)
    meta, lines = percentiles(two.first, "tensor=2&rank=0")
    assert (meta["ranks"], 35.0 in lines["most"], 29.0 in lines["most"]) == (1, False, True)
    assert lines["least"] == lines["most"]
    assert two.first.ask("/figures/percentiles?tensor=77").status_code == 404


def percentiles(run: Run, query: str) -> tuple[dict[str, Any], dict[str, dict[float, float]]]:
    found = run.get(f"/figures/percentiles?{query}")
    traces = found["figure"]["data"]
    return found["meta"], {each["name"]: dict(zip(array(each["x"]), array(each["y"]), strict=True)) for each in traces}


def entries(*named: tuple[str, str]) -> Any:
    return tensors_of([TensorEntry(name, "output", 0, dtype, (1,), i) for i, (name, dtype) in enumerate(named)])


def test_of_several_dtypes_only_the_sure_ones_are_paired() -> None:
    here = entries(("a", "float16"), ("a", "float32"), ("b", "float16"), ("b", "float32"), ("c", "float16"))
    there = entries(("a", "float32"), ("a", "bfloat16"), ("b", "bfloat16"), ("c", "bfloat16"))
    found = pairs(here, np.arange(5), there, np.arange(4))
    # a: float32 with float32, and the one that is left with the one that is left; b: one of two, nobody knows which.
    assert dict(zip(found.here.tolist(), found.there.tolist(), strict=True)) == {0: 1, 1: 0, 4: 3}
    assert (found.only_here, found.only_there) == ([2, 3], [2])


def test_unknown_limits_are_no_difference() -> None:
    bits = np.array([[np.nan, 3.0]], np.float32)
    compared = compare(Cells(bits, np.zeros((1, 2), np.uint8)), Cells(bits * 0 + 1, np.zeros((1, 2), np.uint8)))
    assert np.isnan(compared.difference[0, 0])
    assert compared.difference[0, 1] == 2.0
    assert [(each.column, each.broke) for each in losses(compared, 5)] == [(1, False)]
