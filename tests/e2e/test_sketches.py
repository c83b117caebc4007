"""Sketches of one process, DDP, FSDP2 and TP are of the same tensors, and see what statistics do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.commands.command import typed
from tests.e2e.rank_processes import train
from tests.server.process import Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
WORKER = Path(__file__).with_name("sketch_ranks.py")
LAYOUTS = ("ddp", "fsdp2", "tp2")


@pytest.fixture(scope="module")
def trained(served: Server) -> Server:
    planted = ("none 0", "units 3", "element 4")
    train(WORKER, 1, served.url, "one none 9", *(f"one {each}" for each in planted))
    ranks = [f"{layout} {each}" for layout in LAYOUTS for each in planted]
    train(WORKER, 2, served.url, "tp2-said none 0", "tp2-dtensor none 0", *ranks)
    train(WORKER, 4, served.url, "hsdp none 0", "fsdp2tp2-said none 0")
    return served


def diff(server: Server, one: str, other: str, *more: str) -> tuple[int, dict[str, Any]]:
    status, out, err = typed("diff", one, other, "--json", *more, "--url", server.url)
    assert not err
    return status, json.loads(out)


@pytest.mark.parametrize(
    ("layout", "parameters"),
    [("ddp", 26), ("fsdp2", 26), ("tp2", 16), ("tp2-said", 26), ("hsdp", 26), ("fsdp2tp2-said", 26)],
)
def test_of_equal_weights_they_are_equal_in_all_bits(trained: Server, layout: str, parameters: int) -> None:
    """Under tensor parallelism of plain tensors nobody knows how they lie, unless `replicated` says so."""
    status, found = diff(trained, "one none 0", f"{layout} none 0", "--tolerance", "1e-4")
    assert (status, found["step"]) == (0, None), found["tensors"][:6]
    sketched = found["sketched"]
    assert sketched["tensors"] == 2 * parameters, "all weights, and all gradients that the optimizer gets"
    if layout == "hsdp":  # all ranks have the whole batch: nothing is rounded otherwise
        assert sketched["equal"] == 2 * parameters
        return
    first = sketched["first_unequal"]  # by rounding; weights come before all else in a step
    assert first["step"] == 0 and first["label"].endswith("reduced_grad")
    assert 0 < sketched["furthest"]["distance"] < 1e-4


def test_activations_that_are_dtensors_are_sketched_too(trained: Server) -> None:
    status, found = diff(trained, "one none 0", "tp2-dtensor none 0", "--tolerance", "1e-4")
    assert (status, found["sketched"]["tensors"]) == (0, 2 * 16 + 4), "what the first matrix of each block gives"
    assert found["sketched"]["furthest"]["distance"] < 1e-4


def test_one_process_again_is_the_same_to_the_bit(trained: Server) -> None:
    status, found = diff(trained, "one none 0", "one none 9")
    assert (status, found["sketched"]["first_unequal"]) == (0, None)
    assert found["sketched"]["tensors"] == found["sketched"]["equal"] > 2 * 26, "activations too"


@pytest.mark.parametrize("layout", ("one", *LAYOUTS))
@pytest.mark.parametrize("planted", ["units 3", "element 4"])
def test_what_changes_places_is_seen_in_any_layout(trained: Server, layout: str, planted: str) -> None:
    reference = "one none 0"
    status, found = diff(trained, reference, f"{layout} {planted}", "--tolerance", "1e-4")
    assert (status, found["step"]) == (1, int(planted[-1]))
    first = found["tensors"][0]
    assert first["label"].startswith("blocks.1.up.weight" if "units" in planted else "blocks.2.up.weight")
    # Layouts round in another order, which of the largest magnitude may be the last bit.
    assert first["other_amax"] == pytest.approx(first["amax"], rel=1e-6), "statistics are blind"
    assert first["difference_bits"] < 1e-6, "statistics are blind"
    assert 1e-3 < first["sketch"]["low"] < first["sketch"]["high"] < 2
