"""Shelf 2: background sources. To add one is a module of its own and a line in `ALL`.

The class carries the rest: `name` is what `attach(collect=...)` calls it, `help` and `docs` are its row of
docs/collectors.md (`python -m tools.docs_tables`), and the columns of its `Samples` travel as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from rangewatch.collectors.base import Collector
from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.collectors.environment import EnvironmentCollector
from rangewatch.collectors.gpu.amd import AmdGpuCollector
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.collectors.host import HostCollector
from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.wire.records import RankInfo

ALL: tuple[type[Collector], ...] = (AmdGpuCollector, Collectives, EnvironmentCollector, GpuCollector, HostCollector)


def chosen(collect: Collection[str] | None) -> tuple[str, ...]:
    """The names that the option `collect` stands for; None: all. Raises `ValueError` for one that there is not."""
    names = tuple(each.name for each in ALL)
    if collect is None:
        return names
    if not set(collect) <= set(names):
        raise ValueError(f"rangewatch option collect={collect!r}: must be some of {', '.join(names)}, or none")
    return tuple(collect)


def made(options: Options, info: RankInfo, guard: Guard) -> list[Collector]:
    """The collectors of one attached model: those that `options.collect` names and that can be made here."""
    collectors: list[Collector] = []
    for each in ALL:
        if each.name in chosen(options.collect):
            guard.run(each.name, partial(_add, collectors, each, options, info))
    return collectors


def _add(collectors: list[Collector], make: type[Collector], options: Options, info: RankInfo) -> None:
    collectors.append(make(options, info))
