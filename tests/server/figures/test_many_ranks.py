"""Heatmaps by rank of many ranks: those that stand out have rows of their own, and the others are one, their median."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.figures.heatmaps.rank_rows import MANY_RANKS
from rangewatch_server.numerics.headroom import State
from tests.server.plots import array, valid
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

RANKS, STEPS, TENSORS = MANY_RANKS + 16, 64, 3
LOW, SPIKE, SPIKE_AT, NAN, NAN_AT = 11, 42, 30, 70, 20
KNOWN = catalogue(TENSORS)


@pytest.fixture(scope="module")
def many(module_run: Run) -> Run:
    """Magnitudes of about 16, differing by a tenth of a bit; one rank eight bits higher, one for a single step in one
    tensor, and one that holds a NaN."""
    random = np.random.default_rng(0)
    for rank in range(RANKS):
        bits = 4 + random.normal(0, 0.1, (TENSORS, STEPS))
        bits += 8.0 * (rank == LOW)
        bits[1, SPIKE_AT] += 7.0 * (rank == SPIKE)
        nans = np.zeros((TENSORS, STEPS))
        nans[2, NAN_AT] = rank == NAN
        sent = batch(KNOWN, 0, range(STEPS), {"amax": np.exp2(bits), "nan_count": nans}, rank=rank)
        assert module_run.post(opening(KNOWN, rank=rank, world_size=RANKS), sent).is_success
    return module_run


@pytest.mark.parametrize("query", ["timeline?rows=20", "timeline?rows=20&statistic=amax", "timeline?rows=20&q=*"])
def test_over_the_steps(many: Run, query: str) -> None:
    found = many.get(f"/figures/{query}")
    rows = found["meta"]["rows"]
    assert [row["rank"] for row in rows] == [LOW, SPIKE, NAN, None]
    assert rows[-1]["label"] == f"{RANKS - 3} others"
    assert f"{RANKS - 3} others: median" in found["meta"]["note"]
    states = array(found["meta"]["states"])
    assert (states[2] == State.NAN).sum() == 1 and states[2, NAN_AT] == State.NAN
    assert (states[3] == State.VALUE).all()
    z = array(valid(found["figure"])["data"][0]["z"])
    assert np.ptp(z[3]) < 0.5, "the median hides no spike: the rank that had it has a row"
    assert abs(z[1, SPIKE_AT] - z[3, SPIKE_AT]) > 5


def test_of_one_step(many: Run) -> None:
    rows = many.get(f"/figures/ranks?start={SPIKE_AT}&stop={SPIKE_AT + 1}&rows=20")["meta"]["rows"]
    assert [row["rank"] for row in rows] == [LOW, SPIKE, None]


def test_what_more_ranks_hold_than_there_are_rows_is_shown_in_the_row_of_all(many: Run) -> None:
    found = many.get("/figures/timeline?rows=2")
    assert [row["rank"] for row in found["meta"]["rows"]] == [NAN, None]
    found = many.get("/figures/timeline?rows=1")
    assert array(found["meta"]["states"])[0, NAN_AT] == State.NAN


def test_the_exact_step_is_that_of_the_rank(many: Run) -> None:
    rows = many.get("/figures/timeline?rows=20&columns=8&places=3")["meta"]["rows"]
    assert [row.get("step") for row in rows[1:3]] == [SPIKE_AT, NAN_AT]
