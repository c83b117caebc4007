"""How routers spread tokens, over HTTP: sums of steps and ranks."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.server import whatif_batches
from tests.server.expert_batches import send
from tests.server.process import Run

UNEVEN = [[90, 60, 30, 10], [50, 50, 50, 50]]


def decoded(array: Any) -> Any:
    values = np.frombuffer(base64.b64decode(array["bdata"]), f"<{array['dtype']}")
    return values.reshape([int(each) for each in array["shape"].split(",")]) if "shape" in array else values


def test_each_router_over_all_steps_and_ranks(run: Run) -> None:
    for rank in range(2):
        send(run.post, UNEVEN if rank else [[10, 10, 10, 160], UNEVEN[1]], rank=rank, ranks=2)
    first, second = run.get("/experts")["routers"]
    assert (first["name"], first["experts"], first["top_k"], first["routed"]) == ("blocks.0.router", 4, 2, 4000)
    assert first["tokens"] == [20 * 100, 20 * 70, 20 * 40, 20 * 170]
    assert first["largest"] == pytest.approx(170 / 95) and first["largest_expert"] == 3
    assert first["dropped_fraction"] == pytest.approx(20 / 400)
    assert (first["entropy_bits"], first["logit_amax"]) == (pytest.approx(1.25), 3.0)
    assert (second["largest"], second["unused"], second["dropped_fraction"]) == (1.0, 0, None)
    assert (second["entropy_bits"], second["logits"]) == (None, None)
    only = run.get("/experts?rank=1&start=5&stop=7")["routers"][0]
    assert only["tokens"] == [180, 120, 60, 20] and only["routed"] == 200


def test_a_run_without_routers_has_none(run: Run) -> None:
    whatif_batches.send(run.post, {})
    assert run.get("/experts")["routers"] == []
    figure = run.get("/figures/routers")
    assert figure["figure"]["data"][0]["z"]["shape"].startswith("0,") and "attach(routers" in figure["meta"]["empty"]


def test_the_load_of_each_expert_over_the_steps(run: Run) -> None:
    loads = np.full((2, 4, 20), 50.0)
    loads[0, :, 10:] = np.array([0, 50, 100, 50])[:, None]
    send(run.post, loads)
    answer = run.get("/figures/experts?tensor=1&columns=20")
    z, meta = decoded(answer["figure"]["data"][0]["z"]), answer["meta"]
    assert [each["label"] for each in meta["rows"]] == [f"expert {at}" for at in range(4)]
    assert z[:, 0].tolist() == [0, 0, 0, 0] and z[:, 15].tolist() == [-16, 0, 1, 0]
    assert decoded(meta["measured"]["largest"])[[0, 15]].tolist() == [1.0, 2.0]
    assert decoded(meta["measured"]["dropped_fraction"])[0] == pytest.approx(10 / 210)
    assert (meta["experts"], meta["top_k"], meta["statistic"]["scale"]) == (4, 2, "load")
    merged = run.get("/figures/experts?tensor=1&columns=1")
    assert decoded(merged["figure"]["data"][0]["z"])[:, 0].tolist() == pytest.approx(
        np.log2([0.5, 1.0, 1.5, 1.0]).tolist(), abs=1e-6
    )
    assert merged["meta"]["note"].startswith("each column: all tokens of")


def test_routers_by_their_largest_load(run: Run) -> None:
    send(run.post, UNEVEN)
    answer = run.get("/figures/routers?columns=20")
    z = decoded(answer["figure"]["data"][0]["z"])
    assert [(each["label"], each["tensor"]) for each in answer["meta"]["rows"]] == [
        ("blocks.0.router", 1), ("blocks.1.router", 2)
    ]  # fmt: skip
    assert z[:, 3].tolist() == pytest.approx([np.log2(90 / 47.5), 0.0], abs=1e-6)
    few = run.get("/figures/routers?columns=20&rows=1")
    assert decoded(few["figure"]["data"][0]["z"])[0, 3] == z[0, 3], "the one furthest from the mean"
