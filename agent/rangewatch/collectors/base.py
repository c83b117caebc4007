"""What a background source of samples is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rangewatch.wire.records import Samples

Emit = Callable[[str, str, dict[str, Any]], None]
"""(event kind, message, data): ships an event of the open step. From any thread."""


class Collector(Protocol):
    """A source that is looked at once a second, on a thread of its own and never on the training thread.

    Whatever it raises is counted, and after some faults it is stopped and left alone. One that torch calls too has a
    `guard` of its own for that, whose counts are told with the agent's.
    """

    name: str

    def start(self, emit: Emit) -> None:
        """Look what there is; what is not available, and why, is told once."""

    def collect(self, step: int) -> Sequence[Samples]:
        """What is new. `step` is the open one, which rows carry in the column `step`."""

    def stop(self) -> None:
        """At the end."""
