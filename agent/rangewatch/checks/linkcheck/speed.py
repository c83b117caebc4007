"""Which ranks and which links are slow, by comparison with the others of this check. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rangewatch.checks.linkcheck.tasks import GLOO, Pair

LEAST_RANKS = 3
"""Of two ranks neither is slower than the usual."""
FLOOR_S = {GLOO: 5e-3}
FLOOR_OTHERS_S = 200e-6
"""Differences below this are the scheduler's: gloo waits for a CPU, NCCL for a kernel launch."""


class Measured(NamedTuple):
    """Seconds of one small and one large all_reduce of a pair."""

    latency_s: float
    large_s: float


class Slow(NamedTuple):
    """`ranks` are slow with everybody; `pairs` are slow though both of their ranks are not."""

    ranks: tuple[int, ...]
    pairs: tuple[Pair, ...]


def busbw(nbytes: int, seconds_s: float, ranks: int) -> float:
    """Bytes a second of an all_reduce by nccl-tests' definition: algbw times 2(n-1)/n."""
    return nbytes / seconds_s * 2 * (ranks - 1) / ranks


def slow(pairs: Mapping[Pair, Measured], hosts: Mapping[int, str], backend: str, factor: float) -> Slow:
    """What takes more than `factor` times as long as usual. Pairs within a host and between hosts are compared apart.

    A rank is measured by its fastest link, and a link by the usual one of its ends, so that links of different kinds
    (NVLink between some GPUs only) are no finding.
    """
    floor_s = FLOOR_S.get(backend, FLOOR_OTHERS_S)
    ranks: set[int] = set()
    links: set[Pair] = set()
    for is_within in (True, False):
        mine = {pair: each for pair, each in pairs.items() if (hosts[pair[0]] == hosts[pair[1]]) == is_within}
        for read in (_latency, _large):
            times = {pair: read(each) for pair, each in mine.items()}
            here = _slow_ranks(times, lambda time_s, usual_s: time_s > factor * usual_s + floor_s)
            rest = {pair: time_s for pair, time_s in times.items() if not set(pair) & here}
            links |= _slow_links(rest, lambda time_s, usual_s: time_s > factor * usual_s + floor_s)
            ranks |= here
    return Slow(tuple(sorted(ranks)), tuple(sorted(pair for pair in links if not set(pair) & ranks)))


def _latency(measured: Measured) -> float:
    return measured.latency_s


def _large(measured: Measured) -> float:
    return measured.large_s


def _slow_ranks(times: Mapping[Pair, float], is_slow: Callable[[float, float], bool]) -> set[int]:
    best = {rank: min(_of(rank, times)) for rank in {rank for pair in times for rank in pair}}
    if len(best) < LEAST_RANKS:
        return set()
    usual_s = statistics.median_low(list(best.values()))
    return {rank for rank, time_s in best.items() if is_slow(time_s, usual_s)}


def _slow_links(times: Mapping[Pair, float], is_slow: Callable[[float, float], bool]) -> set[Pair]:
    slow = set()
    for pair, time_s in times.items():
        usual = [statistics.median_low(_of(rank, times)) for rank in pair if len(_of(rank, times)) > 1]
        if usual and is_slow(time_s, max(usual)):
            slow.add(pair)
    return slow


def _of(rank: int, times: Mapping[Pair, float]) -> list[float]:
    return [time_s for pair, time_s in times.items() if rank in pair]
