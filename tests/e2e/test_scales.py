"""Four real ranks that train in float8: scales to the server, and the rank whose scales are too small by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.e2e.rank_processes import number_of, train
from tests.server.process import Server

pytest.importorskip("torchao.float8", reason="torchao is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("scale_ranks.py")
RANKS, FROM, BAD_RANK = 4, 10, 2


def test_scales_of_four_ranks(served: Server, tmp_path: Path) -> None:
    train(WORKER, RANKS, served.url, str(tmp_path), "whole", "partial")
    for run in ("whole", "partial"):
        largest = [json.loads((tmp_path / f"{run}.{rank}.json").read_text()) for rank in range(RANKS)]
        number = number_of(served, run)
        operands = served.get(f"/api/v1/runs/{number}/scales?rank=0")["operands"]
        first = next(each for each in operands if (each["name"], each["kind"]) == ("0", "scaled_input"))
        assert (first["format"], first["granularity"], first["source"]) == ("E4M3", "tensor", "torchao float8")
        ends = [math.log2(min(largest[0]) / 448), math.log2(max(largest[0]) / 448)]
        assert first["scale_log2"] == pytest.approx(ends, abs=1e-5)
        assert first["amax"] == max(largest[0])
        assert len(operands) == 6 and {each["state"] for each in operands} == {"value"}
        found = [
            each for each in served.get(f"/api/v1/runs/{number}/diagnosis")["findings"] if each["severity"] != "info"
        ]
        if run == "whole":
            assert found == []
            continue
        too_small = next(each for each in found if each["rule"] == "scale_too_small")
        assert (too_small["rank"], too_small["step"]) == (BAD_RANK, FROM)
        worst = served.get(f"/api/v1/runs/{number}/scales?rank={BAD_RANK}")["operands"]
        assert next(each for each in worst if each["name"] == "0")["headroom_bits"] == pytest.approx(-3, abs=1e-5)
