"""Every drop of the loss scale with its cause, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from rangewatch import wire
from rangewatch.statistics import ALL
from rangewatch.wire.records import Batch, Catalogue, RangeRows, RankInfo, SeriesRows, StreamHeader
from tests.server.process import Run
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, GRAD_WEIGHT, LAYERS, OUTPUT_B, bad, scaled

KNOWN = Catalogue(ALL, tuple(LAYERS))
A_BATCH = 256


def send(
    run: Run, series: dict[str, np.ndarray], counts: np.ndarray | float = 0.0, *, rank: int = 0, ranks: int = 1,
    amax: float = 1.0, first: int = 0, incarnation: str = "a",
) -> None:  # fmt: skip
    """What a rank tells; `counts`: Inf by tensor and step."""
    info = RankInfo("run", rank, ranks, rank, "host", incarnation, 1, loss_scaled=True)
    run.post(StreamHeader(info, KNOWN))
    steps = len(series["skipped_step"])
    shape = (len(LAYERS), steps)
    columns = {
        name: np.broadcast_to(np.asarray(value, float), shape)
        for name, value in {"call_count": 1, "numel": 32, "amax": amax, "nan_count": 0, "inf_count": counts}.items()
    }
    for sequence, low in enumerate(range(0, steps, A_BATCH)):
        part = slice(low, low + A_BATCH)
        at = first + np.arange(steps)[part]
        ranges = RangeRows(at, np.arange(shape[0]), {name: each[:, part] for name, each in columns.items()})
        rows = tuple(SeriesRows(name, at, values[part]) for name, values in series.items())
        batch = Batch("run", rank, incarnation, sequence, wire.catalogue_digest(KNOWN), ranges, rows)
        assert run.post(batch).status_code == 202


def get(run: Run, **query: Any) -> Any:
    return run.get(f"/loss_scale?{httpx.QueryParams(query)}")


def test_a_drop_has_its_cause(run: Run) -> None:
    series = scaled(200, (150,))
    counts = bad(series, GRAD_B, GRAD_A)
    send(run, series, 0.0, rank=0, ranks=3)
    send(run, series, counts, rank=1, ranks=3, amax=60_000.0)
    send(run, series, counts, rank=2, ranks=3)
    found = get(run)
    (drop,) = found["drops"]
    assert (drop["step"], drop["skipped"], drop["cause"]) == (150, True, "gradient")
    assert drop["scales"] == [{"scaler": "loss_scale", "before": 65536.0, "after": 32768.0}]
    assert (drop["ranks"], drop["rank_count"], drop["tensor_count"]) == ([1, 2], 2, 2)
    assert (drop["first"]["label"], drop["first"]["rank"], drop["first"]["inf_count"]) == ("b grad_output", 1, 1)
    assert drop["first"]["headroom_before_bits"] == pytest.approx(np.log2(65504 / 60_000))
    assert [each["label"] for each in drop["tensors"]] == ["b grad_output", "a grad_output"]
    scale = {"name": "loss_scale", "min": 32768.0, "max": 65536.0, "last": 32768.0}
    assert found["scalers"] == [{**scale, "settings": None}], "nobody told of the scaler's settings"
    assert (found["skipped_steps"], found["next"], found["layers_of_drops"]) == (1, None, 1)


@pytest.mark.parametrize(
    ("rows", "cause"),
    [((OUTPUT_B, GRAD_B), "forward"), ((GRAD_WEIGHT,), "gradient"), ((), "unknown")],
)
def test_what_is_to_blame(run: Run, rows: tuple[int, ...], cause: str) -> None:
    series = scaled(100, (50,))
    send(run, series, bad(series, *rows))
    (drop,) = get(run)["drops"]
    assert (drop["cause"], drop["first"] is None) == (cause, not rows)


def test_layers_by_how_often_they_are_the_first(run: Run) -> None:
    series = scaled(200, (10, 60, 110, 160))
    counts = bad(series, GRAD_A)
    counts[GRAD_B, 60] = 1
    send(run, series, counts, amax=123.0)
    layers = get(run)["layers"]
    assert [(each["label"], each["first"], each["overflows"]) for each in layers] == [
        ("a grad_output", 3, 4), ("b grad_output", 1, 1),
    ]  # fmt: skip
    assert [(each["last_step"], each["amax"]) for each in layers] == [(160, 123.0), (60, 123.0)]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_have_each_drop_once(run: Run, order: str) -> None:
    steps = [3, 4, 64, 700, 701, 1_500, 2_999]
    send(run, scaled(3_000, steps))
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 2, "order": order}
    while True:
        page = get(run, **query)
        seen += [each["step"] for each in page["drops"]]
        if page["next"] is None:
            break
        query["stop" if order == "newest" else "start"] = page["next"]
    assert seen == (steps[::-1] if order == "newest" else steps)
    assert get(run)["skipped_steps"] == len(steps)


def test_an_output_that_always_holds_inf_is_to_blame_in_no_range(run: Run) -> None:
    """A mask, in a collapse of more steps than are looked back at."""
    series = scaled(400, range(300, 400))
    counts = bad(series, GRAD_A)
    counts[OUTPUT_B] = 1
    send(run, series, counts, amax=60_000.0)
    for query in ({}, {"start": 350}, {"stop": 391}):
        assert {each["cause"] for each in get(run, **query)["drops"]} == {"gradient"}, query
    (last,) = get(run, start=399)["drops"]
    assert (last["first"]["label"], last["first"]["amax_before"]) == ("a grad_output", 60_000.0)


def test_a_mask_on_every_rank_does_not_hide_the_one_that_overflows(run: Run) -> None:
    series = scaled(100, (50,))
    for rank in range(12):
        counts = bad(series, *([GRAD_B] if rank == 10 else []))
        counts[OUTPUT_B] = 1
        send(run, series, counts, rank=rank, ranks=12)
    (drop,) = get(run)["drops"]
    assert (drop["cause"], drop["ranks"], drop["first"]["label"]) == ("gradient", [10], "b grad_output")


def test_what_lies_across_the_edge_of_a_page_is_known(run: Run) -> None:
    series = scaled(300, (100, 101), first=2.0**16)
    series["loss_scale"][99:] /= 2  # set lower, without a skip
    send(run, series)
    drops = get(run)["drops"]
    assert [(each["step"], each["cause"]) for each in drops] == [(101, "unknown"), (100, "unknown"), (98, "set")]
    for stop, seen in ((101, drops[1:]), (99, drops[2:])):
        assert get(run, stop=stop)["drops"] == seen


def test_a_scale_that_is_set_lower_without_a_skip(run: Run) -> None:
    series = scaled(300, (), first=2.0**16)
    series["loss_scale"][128:] = 1_024.0
    send(run, series)
    (drop,) = get(run)["drops"]
    assert (drop["step"], drop["skipped"], drop["cause"]) == (127, False, "set")
    assert drop["scales"][0] == {"scaler": "loss_scale", "before": 65536.0, "after": 1024.0}


def test_several_scalers_have_each_their_own(run: Run) -> None:
    series = scaled(100, (40,))
    series["loss_scale/1"] = np.full(100, 8.0)
    send(run, series)
    found = get(run)
    assert [each["name"] for each in found["scalers"]] == ["loss_scale", "loss_scale/1"]
    assert found["drops"][0]["scales"][1] == {"scaler": "loss_scale/1", "before": 8.0, "after": 8.0}


def test_the_last_step_does_not_know_what_comes_after(run: Run) -> None:
    send(run, scaled(50, (49,)))
    (drop,) = get(run)["drops"]
    assert drop["scales"][0]["after"] is None


def test_a_run_without_a_scaler(run: Run) -> None:
    series = {"skipped_step": np.zeros(20)}
    send(run, series)
    found = get(run)
    assert (found["scalers"], found["drops"], found["layers"], found["skipped_steps"]) == ([], [], [], 0)


def test_what_cannot_be_asked_is_refused(run: Run) -> None:
    send(run, scaled(20, ()))
    for query in ({"limit": 0}, {"limit": 201}, {"order": "worst"}, {"start": -1}):
        assert run.ask("/loss_scale", params=query).status_code == 422, query
    assert run.server.client.get("/api/v1/runs/999999/loss_scale").status_code == 404
