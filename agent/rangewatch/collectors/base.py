"""What a background source of samples is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rangewatch.core.options import Options
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo, Samples


class Collector(Protocol):
    """A source that is read once a second, on a thread of its own and never on the training thread.

    Whatever it raises is counted, and after some faults it is stopped and left alone. One that torch calls too has a
    `guard` of its own for that, whose counts are sent with the agent's.
    """

    name: str
    """What `attach(collect=...)` calls it."""
    help: str
    """What it collects, for the docs."""
    docs: str
    """The page of the docs that says more."""

    def __init__(self, options: Options, info: RankInfo) -> None:
        """Made by the thread that attaches; what takes time is for `start`."""

    def start(self, events: Events) -> None:
        """Look what there is. What is not available, and why, is an event, once."""

    def collect(self, step: int) -> Sequence[Samples]:
        """What is new. `step` is the open one, which rows carry in the column `step`."""

    def stop(self) -> None:
        """At the end."""
