"""What a tracker is to the mirror: how its open run is found, and what is written there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from rangewatch.wire.records import RankInfo

PREFIX = "rangewatch/"
"""Of all names that are written, so that none is the user's own."""

STEP = PREFIX + "step"
"""The optimizer step of a row, where the tracker's own step is the user's to count."""

ALERT_COLUMNS = ("step", "severity", "rule", "rank", "tensor", "summary")


class AlertRow(NamedTuple):
    """An alert of the run that has opened. `step`, `rank` and `tensor` are None where it is of none in particular."""

    step: int | None
    severity: str
    rule: str
    rank: int | None
    tensor: str | None
    summary: str


class Sink(Protocol):
    """One open run of a tracker. Called by the mirror's thread alone; whatever it raises is counted as a drop."""

    def link(self, run: str, address: str) -> None:
        """Say which run of Rangewatch belongs to it, and where it is seen."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A row of finite numbers, by name without prefix."""

    def alerts(self, rows: list[AlertRow]) -> None:
        """All alerts so far, the last of which has just opened."""

    def close(self) -> None:
        """Nothing more is written. The run itself is the user's to end."""


class Tracker(NamedTuple):
    """A shelf entry. `find(where, info)`: the run that is open in this process, or None; called on the training thread
    between two steps, since some keep it by thread, and so must neither wait nor import. `where` is what follows the
    name in the option, as in `tensorboard:runs`. `behind`: seconds of processor time that a row takes on the tracker's
    own threads for each second on the mirror's, which alone is measured (by `bench/mirror_threads.py`, rounded up).
    """

    name: str
    package: str
    find: Callable[[str, RankInfo], Sink | None]
    takes_where: bool = False
    help: str = ""
    behind: float = 0.0

    def is_installed(self) -> bool:
        """Whether its package can be imported here; nothing is imported."""
        return importlib.util.find_spec(self.package) is not None
