"""`ship_every`: rows of several steps merged into one, and nothing lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rangewatch
from rangewatch import statistics
from rangewatch.recording.rows.step_buffer import IDENTITIES, POSITIONS, Block, merge_steps
from tests.agent.ingest_double import IngestDouble


def block(values: list[float], first: int = 0, bad: set[int] = frozenset(), traced: set[int] = frozenset()) -> Block:  # type: ignore[assignment]
    rows = np.empty((len(IDENTITIES), len(values), 1))
    for name, position in POSITIONS.items():
        rows[position, :, 0] = values if name in ("amax", "amin", "sum_sq") else 1.0
    for name in ("nan_count", "inf_count"):
        rows[POSITIONS[name]] = 0.0
    steps = np.arange(first, first + len(values))
    rows[POSITIONS["inf_count"], :, 0] = np.isin(steps, list(bad))
    return Block(steps, rows, {"loss": {3: 1.0}}, frozenset(traced))


def column(merged: Block, name: str) -> list[float]:
    return [float(value) for value in merged.rows[POSITIONS[name], :, 0]]


def test_by_each_rule() -> None:
    merged = merge_steps(block([3.0, 9.0, 1.0, 2.0], first=6), 8)
    assert merged.steps.tolist() == [7, 9]
    assert column(merged, "amax") == [9.0, 2.0] and column(merged, "amin") == [3.0, 1.0]
    assert column(merged, "sum_sq") == [12.0, 3.0] and column(merged, "call_count") == [2.0, 2.0]
    assert merged.series == {"loss": {3: 1.0}}


def test_events_stay_whole_with_their_neighbours() -> None:
    assert merge_steps(block([1.0] * 24, bad={9}), 8).steps.tolist() == [7, *range(8, 16), 23]
    assert merge_steps(block([1.0] * 24, traced={16}), 8).steps.tolist() == [7, 15, *range(16, 24)]
    assert merge_steps(block([1.0] * 5), 1).steps.tolist() == [0, 1, 2, 3, 4]
    assert merge_steps(block([]), 8).steps.tolist() == []


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=40), st.integers(0, 200), st.lists(st.integers(0, 40)))
def test_any_grouping_equals_the_whole(values: list[float], first: int, cuts: list[int]) -> None:
    whole = merge_steps(block(values, first), 10**9)
    pieces = [merge_steps(block(part.tolist(), first), 8) for part in np.split(np.array(values), sorted(cuts))]
    rows = np.concatenate([piece.rows for piece in pieces], axis=1)
    again = merge_steps(Block(np.arange(rows.shape[1]), rows, {}), 10**9)
    for statistic in statistics.ALL:
        found, wanted = column(again, statistic.name), column(whole, statistic.name)
        assert found == wanted if statistic.merge != "sum" else np.allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_an_attached_model(ingest: IngestDouble, backend: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    options: Any = {"ship_every": 8, "ship_interval_s": 0, "backend": backend, "full_every": 4}
    with rangewatch.attach(model, url=ingest.url, **options) as handle:
        for step in range(20):
            model(torch.full((1, 1), 100.0 if step == 5 else 1.0))
            handle.log(loss=step)
            handle.step()
    cells = ingest.tensors()["", "output", 0]
    peak = float(model.weight.detach().abs()) * 100.0
    assert sorted(cells) == [7, 15, 19] and [cell["call_count"] for cell in cells.values()] == [8, 8, 4]
    assert cells[7]["amax"] == pytest.approx(peak) and cells[15]["amax"] == pytest.approx(peak / 100)
    assert sorted(ingest.series("loss")) == list(range(20)), "series are not merged"
    assert ingest.openings[0].info.ship_every == 8


@pytest.mark.parametrize("wrong", [0, 2, True, "8", 8.5])
def test_what_it_may_be(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"ship_every=.*: must be 1, 8 or 64"):
        rangewatch.attach(nn.Linear(1, 1), ship_every=wrong)
