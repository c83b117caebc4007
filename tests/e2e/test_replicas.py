"""Four real ranks of a replicated model: of a flipped bit step, rank and parameter are named; healthy ones are silent.

The runs of a test are trained one after the other by the same ranks: most of their time is the ranks' start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rank_processes import number_of, train
from tests.e2e.replica_ranks import COMPARED, DIFFERENT, DIFFERENT_LATER, PARAMETERS, RANKS, STEPS, planted
from tests.server.process import Server

pytestmark = pytest.mark.timeout(300)
WORKER = Path(__file__).with_name("replica_ranks.py")
SOAK = [pytest.mark.soak, pytest.mark.timeout(1800)]


def findings(server: Server, run: str) -> list[dict[str, Any]]:
    found = server.get(f"/api/v1/runs/{number_of(server, run)}/diagnosis")
    assert found["stop"] >= STEPS and not found["failed"], found
    return [each for each in found["findings"] if each["rule"] == "replica_mismatch"]


def parameters_read(server: Server, run: str) -> int:
    """How many parameters of rank 0 have a checksum at any step."""
    query = "axes=step,tensor&rank=0&kind=grad&statistic=checksum_max"
    found = server.get(f"/api/v1/runs/{number_of(server, run)}/slice?{query}")
    return sum(any(each) for each in found["values"]["checksum_max"])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=SOAK)], ids=["one", "others"])
def test_a_flipped_bit_is_named(served: Server, seeds: range) -> None:
    train(WORKER, RANKS, served.url, *(f"flip {seed}" for seed in seeds))
    for seed in seeds:
        truth, found = planted(str(seed)), findings(served, f"flip {seed}")
        named = [(each["rank"], each["step"], each["tensor"], each["severity"]) for each in found]
        assert named == [(truth.rank, truth.step, truth.parameter, "critical")], (truth, found)


@pytest.mark.parametrize(
    "runs",
    [pytest.param((*COMPARED[:5], COMPARED[-1]), marks=pytest.mark.slow), pytest.param(COMPARED[5:-1], marks=SOAK)],
    ids=["some", "others"],
)  # fmt: skip
def test_healthy_replicas_are_silent(served: Server, runs: tuple[str, ...]) -> None:
    train(WORKER, RANKS, served.url, *(f"{what} 1" for what in runs))
    for what in runs:
        assert findings(served, f"{what} 1") == [], what
        assert parameters_read(served, f"{what} 1") == len(PARAMETERS) - (2 if what == "ignored" else 0), what


@pytest.mark.parametrize(
    "runs", [pytest.param(DIFFERENT[:2], marks=pytest.mark.slow), pytest.param(DIFFERENT[2:], marks=SOAK)],
    ids=["some", "others"],
)  # fmt: skip
def test_what_need_not_be_alike_is_not_compared(served: Server, runs: tuple[str, ...]) -> None:
    train(WORKER, RANKS, served.url, *(f"{what} 1" for what in runs))
    for what in runs:
        assert findings(served, f"{what} 1") == [], what
        assert parameters_read(served, f"{what} 1") == 0, what


@pytest.mark.slow
def test_what_a_loop_no_longer_reduces_is_no_longer_compared(served: Server) -> None:
    train(WORKER, RANKS, served.url, *(f"{what} 1" for what in DIFFERENT_LATER))
    for what in DIFFERENT_LATER:
        assert findings(served, f"{what} 1") == [], what
        assert parameters_read(served, f"{what} 1") == len(PARAMETERS), what
