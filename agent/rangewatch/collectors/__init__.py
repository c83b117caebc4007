"""SHELF 2: background sources. To add one is a module of its own and a line in `ALL`."""

from __future__ import annotations

from collections.abc import Callable

from rangewatch.collectors.base import Collector
from rangewatch.options import Options
from rangewatch.records import RankInfo

ALL: tuple[Callable[[Options, RankInfo], Collector], ...] = ()


def made(options: Options, info: RankInfo) -> list[Collector]:
    """The collectors of one attached model."""
    return [make(options, info) for make in ALL]
