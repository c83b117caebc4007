from __future__ import annotations

import random
from itertools import combinations

import pytest

from rangewatch.checks.linkcheck.speed import Measured, Slow, busbw, slow
from rangewatch.checks.linkcheck.tasks import GLOO, NCCL

USUAL = Measured(30e-6, 1e-3)


Pairs = dict[tuple[int, int], Measured]


def measured(count: int, bad: dict[tuple[int, int] | int, Measured], noise: float = 0.0) -> Pairs:
    thrown = random.Random(7)
    found = {}
    for pair in combinations(range(count), 2):
        base = next((bad[key] for key in (pair, *pair) if key in bad), USUAL)
        found[pair] = Measured(*(value * (1 + noise * thrown.random()) for value in base))
    return found


def judged(pairs: Pairs, hosts: int = 1, backend: str = NCCL) -> Slow:
    count = max(rank for pair in pairs for rank in pair) + 1
    return slow(pairs, {rank: f"h{rank * hosts // count}" for rank in range(count)}, backend, 3.0)


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("how", [Measured(2e-3, 1e-3), Measured(30e-6, 8e-3)])
def test_a_slow_rank_is_told_by_latency_or_by_bandwidth(count: int, how: Measured) -> None:
    assert judged(measured(count, {1: how}, noise=0.8)) == Slow((1,), ())


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_link_accuses_neither_of_its_ranks(count: int) -> None:
    assert judged(measured(count, {(0, 1): Measured(2e-3, 8e-3)}, noise=0.8)) == Slow((), ((0, 1),))


def test_noise_and_two_ranks_are_no_finding() -> None:
    assert judged(measured(8, {}, noise=1.5)) == Slow((), ())
    assert judged(measured(2, {(0, 1): Measured(1.0, 1.0)})) == Slow((), ())


def test_fast_bridges_between_some_gpus_do_not_make_the_others_slow() -> None:
    bridged = Measured(10e-6, 0.1e-3)
    assert judged(measured(4, {(0, 1): bridged, (2, 3): bridged})) == Slow((), ())


def test_islands_of_fast_links_do_not_make_the_links_between_them_slow() -> None:
    islands = [pair for ranks in (range(3), range(3, 5)) for pair in combinations(ranks, 2)]
    assert judged(measured(5, {pair: Measured(10e-6, 0.1e-3) for pair in islands})) == Slow((), ())


def test_links_between_hosts_are_compared_with_one_another() -> None:
    network = {(a, b): Measured(300e-6, 10e-3) for a in range(4) for b in range(4, 8)}
    assert judged(measured(8, dict(network)), hosts=2) == Slow((), ())
    card = {pair: Measured(300e-6, 90e-3) if 2 in pair else each for pair, each in network.items()}
    assert judged(measured(8, dict(card)), hosts=2) == Slow((2,), ())


def test_with_gloo_some_milliseconds_are_the_schedulers() -> None:
    late = {1: Measured(4e-3, 4e-3)}
    assert judged(measured(4, dict(late)), backend=GLOO) == Slow((), ())
    assert judged(measured(4, dict(late)), backend=NCCL) == Slow((1,), ())


def test_busbw_is_nccl_tests_definition() -> None:
    assert busbw(1_000_000, 1e-3, 2) == pytest.approx(1e9)
    assert busbw(1_000_000, 1e-3, 8) == pytest.approx(1.75e9)
