"""A run's mesh as the API has it: coordinates, placements, stages in model order, rows folded by an axis."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import Placement, Placements
from rangewatch.wire.records import RankInfo, StreamHeader
from tests.server.plots import array
from tests.server.process import Run
from tests.server.records import batch, catalogue
from tests.server.rules.test_axis_replicas import mesh

KNOWN = catalogue(2)
SIZES = {"pp": 2, "dp": 2, "tp": 2}
RANKS, STEPS, SILENT = 8, 6, 7


def placements(rank: int) -> Placements:
    """The first stage has the first two layers under the whole model's names, the other one the last and the norm."""
    layers = (0, 1) if rank < 4 else (2, 10)
    names = {
        f"model.layers.{layer}.{part}": at for layer in layers for at, part in enumerate(("ff.weight", "norm.weight"))
    }
    names |= {"model.embed.weight": 1} if rank < 4 else {"model.norm.weight": 1}
    groups = Placement({"dp": "shard(0)", "tp": "shard(0)"}), Placement({"dp": "shard(0)", "tp": "replicate"}, ("tp",))
    return Placements(groups, names, len(names))


@pytest.fixture(scope="module")
def placed(module_run: Run) -> Run:
    """Eight ranks on two hosts, of which the last has said nothing of its place; rank 3 has the least headroom."""
    for rank in range(RANKS):
        info = RankInfo("run", rank, RANKS, rank % 4, f"node{rank // 4}", "a", time.time_ns())
        said = () if rank == SILENT else (mesh(SIZES, rank), placements(rank))
        amax = {"amax": np.full((2, STEPS), 60_000.0 if rank == 3 else 1.0)}
        reported = tuple(events.event(each, 1, 0) for each in said)
        module_run.post(StreamHeader(info, KNOWN), batch(KNOWN, 0, range(STEPS), amax, rank=rank, events=reported))
    return module_run


def test_each_rank_has_its_place_and_who_said_nothing_has_none(placed: Run) -> None:
    run = placed.get()
    assert [(each["name"], each["size"], each["is_joined"]) for each in run["mesh"]["axes"]] == [
        ("pp", 2, False), ("dp", 2, False), ("tp", 2, False),
    ]  # fmt: skip
    assert (run["mesh"]["source"], run["mesh"]["problems"]) == ("declared", [])
    by_rank = {each["rank"]: each["coordinates"] for each in run["ranks"]}
    assert by_rank[5] == {"pp": 1, "dp": 0, "tp": 1} and by_rank[SILENT] == {}


def test_placements_and_the_layers_of_each_stage(placed: Run) -> None:
    found: dict[str, Any] = placed.get("/mesh")
    assert found["ranks"][5] == {"rank": 5, "coordinates": {"pp": 1, "dp": 0, "tp": 1}}
    assert [(each["stage"], each["ranks"], each["layers"]) for each in found["stages"]] == [
        (0, [0, 1, 2, 3], ["model.layers.0", "model.layers.1", "model.embed"]),
        (1, [4, 5, 6], ["model.layers.2", "model.layers.10", "model.norm"]),
    ]
    sharded, replicated = found["placements"]
    assert sharded["axes"] == {"dp": "shard(0)", "tp": "shard(0)"} and sharded["alike"] == []
    assert replicated["alike"] == ["tp"] and "model.norm.weight" in replicated["parameters"]
    assert replicated["ranks"] == [0, 1, 2, 3, 4, 5, 6]


def rows(run: Run, query: str) -> dict[str, float]:
    """The label of each row, and its least headroom at the last step."""
    found = run.get(f"/figures/timeline?rows=400&{query}")
    values = array(found["figure"]["data"][0]["z"]).reshape(len(found["meta"]["rows"]), -1)
    return {row["label"]: round(float(bits[-1]), 1) for row, bits in zip(found["meta"]["rows"], values, strict=True)}


def test_rows_of_ranks_fold_by_an_axis_and_carry_the_worst(placed: Run) -> None:
    assert rows(placed, "fold=dp") == {"dp 0": 16.0, "dp 1": 0.1, "dp unknown": 16.0}
    assert rows(placed, "fold=tp") == {"tp 0": 16.0, "tp 1": 0.1, "tp unknown": 16.0}
    assert rows(placed, "fold=node") == {"node node0": 0.1, "node node1": 16.0}
    meta = placed.get("/figures/timeline?fold=dp")["meta"]["rows"]
    assert [each["count"] for each in meta] == [4, 3, 1] and [each["rank"] for each in meta] == [None, None, SILENT]
    assert placed.get("/figures/waits?fold=dp")["meta"]["rows"] == meta


def test_a_single_rank_has_its_place_beside_its_name(placed: Run) -> None:
    row = placed.get("/figures/timeline")["meta"]["rows"][5]
    assert (row["label"], row["place"]) == ("rank 5", "pp 1, dp 0, tp 1")


def test_no_axis_of_the_mesh(placed: Run) -> None:
    answer = placed.ask("/figures/timeline", params={"fold": "ep"})
    assert answer.status_code == 422 and "node, pp, dp, tp" in answer.text


def test_a_run_that_says_nothing(run: Run) -> None:
    run.post(StreamHeader(RankInfo("run", 0, 1, 0, "host", "a", time.time_ns()), KNOWN), batch(KNOWN, 0, range(2)))
    found = run.get("/mesh")
    assert found == {
        "source": None, "axes": [], "problems": [], "ranks": [{"rank": 0, "coordinates": {}}], "placements": [],
        "stages": [],
    }  # fmt: skip


def test_a_place_said_later_is_there_and_a_restarted_rank_has_none_until_it_says_so(placed: Run) -> None:
    def post(rank: int, incarnation: str, sequence: int, *said: Any) -> dict[int, dict[str, int]]:
        info = RankInfo("run", rank, RANKS, rank % 4, f"node{rank // 4}", incarnation, time.time_ns())
        reported = tuple(events.event(each, 1, 0) for each in said)
        steps = range(sequence * STEPS, sequence * STEPS + STEPS)
        sent = batch(KNOWN, sequence, steps, rank=rank, incarnation=incarnation, events=reported)
        placed.post(StreamHeader(info, KNOWN), sent)
        return {each["rank"]: each["coordinates"] for each in placed.get("/mesh")["ranks"]}

    assert post(SILENT, "a", 1, mesh(SIZES, SILENT))[SILENT] == {"pp": 1, "dp": 1, "tp": 1}
    assert post(6, "b", 0)[6] == {}
    assert post(6, "b", 1, mesh(SIZES, 6))[6] == {"pp": 1, "dp": 1, "tp": 0}
