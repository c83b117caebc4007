"""SHELF 2: background sources. To add one is a module of its own, a line in `ALL` and its name in `options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rangewatch.collectors.base import Collector
from rangewatch.collectors.collectives import Collectives
from rangewatch.collectors.environment import EnvironmentCollector
from rangewatch.collectors.gpu import GpuCollector
from rangewatch.collectors.host import HostCollector
from rangewatch.options import Options
from rangewatch.records import RankInfo

ALL: Mapping[str, Callable[[Options, RankInfo], Collector]] = {
    "collectives": Collectives,
    "environment": EnvironmentCollector,
    "gpu": GpuCollector,
    "host": HostCollector,
}


def made(options: Options, info: RankInfo) -> list[Collector]:
    """The collectors of one attached model: those that `options.collect` names."""
    return [make(options, info) for name, make in ALL.items() if name in options.collect]
