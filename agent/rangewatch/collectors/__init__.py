"""Shelf 2: background sources. To add one is a module of its own, a line in `ALL` and its name in `options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rangewatch.collectors.base import Collector
from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.collectors.environment import EnvironmentCollector
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.collectors.host import HostCollector
from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.wire.records import RankInfo

Make = Callable[[Options, RankInfo], Collector]

ALL: Mapping[str, Make] = {
    "collectives": Collectives,
    "environment": EnvironmentCollector,
    "gpu": GpuCollector,
    "host": HostCollector,
}


def made(options: Options, info: RankInfo, guard: Guard) -> list[Collector]:
    """The collectors of one attached model: those that `options.collect` names and that can be made here."""
    found: list[Collector] = []
    for name, make in ALL.items():
        if name in options.collect:
            guard.run(name, partial(_add, found, make, options, info))
    return found


def _add(found: list[Collector], make: Make, options: Options, info: RankInfo) -> None:
    found.append(make(options, info))
