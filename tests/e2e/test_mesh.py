"""Four real ranks on a mesh: what differs along an axis is named, healthy ones are silent, no collective is added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.mesh_ranks import ALIKE, MESHES, RANKS, planted
from tests.e2e.rank_processes import number_of, train
from tests.server.process import Server

pytestmark = pytest.mark.timeout(300)
WORKER = Path(__file__).with_name("mesh_ranks.py")


def findings(server: Server, run: str) -> list[dict[str, Any]]:
    found = server.get(f"/api/v1/runs/{number_of(server, run)}/diagnosis")
    assert not found["failed"], found
    return [each for each in found["findings"] if each["severity"] != "info"]


def assert_named(server: Server, layout: str, trouble: str, seed: int) -> None:
    """The one finding names the parameter, the axis, the ranks and the first step."""
    run, truth = f"{layout} {trouble} {seed}", planted(str(seed))
    (found,) = findings(server, run)
    if trouble == "rate":
        rank = None if layout == "ddp_groups" else truth.rank  # of two ranks either may be wrong
        assert (found["rule"], found["rank"], found["step"]) == ("unequal_settings", rank, truth.step), found
        return
    kind = "reduced_grad" if trouble == "gradient" else "grad"
    named = [found[name] for name in ("rule", "step", "tensor", "kind", "severity")]
    assert named == ["replica_mismatch", truth.step, truth.parameter, kind, "critical"], found
    line = lines_of(layout)[truth.rank]
    assert (found["facts"]["axes"], found["facts"]["groups"]) == ([ALIKE[layout]], [line]), found
    assert f"along {ALIKE[layout]}: ranks {line[0]} (" in found["summary"], found


def lines_of(layout: str) -> dict[int, list[int]]:
    """Rank -> the ranks along the axis on which the planted parameters are replicated."""
    is_inner = list(MESHES[layout]).index(ALIKE[layout]) == 1
    return {rank: [rank // 2 * 2, rank // 2 * 2 + 1] if is_inner else [rank % 2, rank % 2 + 2] for rank in range(RANKS)}


@pytest.mark.slow
def test_fsdp_by_tp_in_one_run_of_each(served: Server) -> None:
    """A replica along tp of which a bit flips is named, and a healthy training is silent."""
    train(WORKER, RANKS, served.url, "fsdp_tp none 1", "fsdp_tp flip 1")
    assert findings(served, "fsdp_tp none 1") == []
    assert_named(served, "fsdp_tp", "flip", 1)
    run = served.get(f"/api/v1/runs/{number_of(served, 'fsdp_tp none 1')}")
    assert [(axis["name"], axis["size"]) for axis in run["mesh"]["axes"]] == [("dp", 2), ("tp", 2)]
    assert [rank["coordinates"] for rank in run["ranks"]] == [
        {"dp": rank // 2, "tp": rank % 2} for rank in range(RANKS)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 3), marks=pytest.mark.soak)], ids=["one", "others"])
@pytest.mark.parametrize("layout", MESHES)
def test_every_layout(served: Server, layout: str, seeds: range) -> None:
    troubles = ("flip", "gradient", "rate")
    planted_runs = (f"{layout} {trouble} {seed}" for trouble in troubles for seed in seeds)
    train(WORKER, RANKS, served.url, f"{layout} none 0", *planted_runs)
    assert findings(served, f"{layout} none 0") == []
    for trouble in troubles:
        for seed in seeds:
            assert_named(served, layout, trouble, seed)
