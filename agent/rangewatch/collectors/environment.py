"""What this rank runs on, sent once: details and what the doctor finds in them, to be compared with other ranks'."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch.checks.doctor.checks import environment_event
from rangewatch.core.options import Options
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo, Samples


class EnvironmentCollector:
    """The collector `environment`."""

    name = "environment"
    help = (
        "details of the machine and the process, once, and what the doctor finds in them, to be compared between ranks"
    )
    docs = "doctor.md"

    def __init__(self, options: Options, info: RankInfo) -> None:
        pass

    def start(self, events: Events) -> None:
        """Some milliseconds: no process is started, and nothing of CUDA."""
        events.add(environment_event(), "the environment of this rank")

    def collect(self, step: int) -> Sequence[Samples]:
        """It does not change."""
        return ()

    def stop(self) -> None:
        """Nothing to end."""
