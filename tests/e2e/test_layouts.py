"""`rangewatch diff` of one process and two ranks in another layout: planted differences are named, equal pairs not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.commands.command import typed
from tests.e2e.rank_processes import train
from tests.server.process import Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
WORKER = Path(__file__).with_name("layout_ranks.py")

LAYOUTS = ("fsdp2", "tp2", "pp2")
PLANTED = (("blocks.1.up", 3), ("blocks.2.norm", 6), ("blocks.3.down", 0), ("head", 5))
SEEDS = (1, 2)


def name(layout: str, place: str = "none", step: int = 0, seed: int = 1) -> str:
    return f"{layout} {place} {step} {seed}"


@pytest.fixture(scope="module")
def trained(served: Server) -> Server:
    train(WORKER, 1, served.url, *(name("one", seed=seed) for seed in SEEDS))
    equal = [name(layout, seed=seed) for layout in LAYOUTS for seed in SEEDS]
    train(WORKER, 2, served.url, *equal, *(name(layout, *each) for layout in LAYOUTS for each in PLANTED))
    return served


def diff(server: Server, one: str, other: str) -> tuple[int, dict[str, Any]]:
    status, out, err = typed("diff", one, other, "--tolerance", "1e-4", "--json", "--url", server.url)
    assert not err
    return status, json.loads(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each[0])
def test_the_first_module_of_a_planted_difference_is_named(
    trained: Server, layout: str, planted: tuple[str, int]
) -> None:
    status, found = diff(trained, name("one"), name(layout, *planted))
    assert (status, found["step"], found["tensors"][0]["fqn"]) == (1, planted[1], planted[0]), found["tensors"][:4]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_equal_pair_makes_no_claim(trained: Server, layout: str, seed: int) -> None:
    status, found = diff(trained, name("one", seed=seed), name(layout, seed=seed))
    assert (status, found["step"], found["loss"]) == (0, None, None), found["tensors"][:8]
    assert found["matched"] > 20


def test_the_other_way_round_it_is_the_same_module(trained: Server) -> None:
    """Stages of a pipeline count their calls from 0: the order is the whole model's."""
    status, found = diff(trained, name("pp2", "blocks.1.up", 3), name("one"))
    assert (status, found["step"], found["tensors"][0]["fqn"]) == (1, 3, "blocks.1.up")
