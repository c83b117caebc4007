"""Four real ranks that train models with experts: the server's loads are the sum of what their routers chose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.e2e import test_mesh
from tests.e2e.expert_ranks import EXPERTS, STEPS
from tests.e2e.rank_processes import train
from tests.server.process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("expert_ranks.py")
MODELS = ("Mixtral", "Qwen3-MoE", "OLMoE")


def test_loads_of_four_ranks_are_added_up(served: Server, tmp_path: Path) -> None:
    train(WORKER, test_mesh.RANKS, served.url, str(tmp_path), *MODELS)
    for run in MODELS:
        counts = [json.loads((tmp_path / f"{run}.{rank}.json").read_text()) for rank in range(test_mesh.RANKS)]
        number = test_mesh.number_of(served, run)
        routers = {each["name"]: each for each in served.get(f"/api/v1/runs/{number}/experts")["routers"]}
        assert set(routers) == set(counts[0]) and len(routers) == 2
        for name, router in routers.items():
            by_rank = np.array([each[name] for each in counts])
            assert by_rank.shape == (test_mesh.RANKS, STEPS, EXPERTS)
            assert router["tokens"] == by_rank.sum(axis=(0, 1)).tolist()
            assert router["routed"] == test_mesh.RANKS * STEPS * 2 * 16
            own = served.get(f"/api/v1/runs/{number}/experts?rank=3&start=1&stop=2")["routers"]
            assert next(each for each in own if each["name"] == name)["tokens"] == by_rank[3, 1].tolist()
        found = served.get(f"/api/v1/runs/{number}/diagnosis")["findings"]
        assert not [each for each in found if each["severity"] != "info"]
