"""What this rank runs on, told once: facts and what the doctor finds in them, to be compared with other ranks'."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch.checks.doctor.event import environment_event
from rangewatch.collectors.base import Emit
from rangewatch.core.options import Options
from rangewatch.wire.records import RankInfo, Samples


class EnvironmentCollector:
    """The collector `environment`."""

    name = "environment"

    def __init__(self, options: Options, info: RankInfo) -> None:
        pass

    def start(self, emit: Emit) -> None:
        """Some milliseconds: no process is started, and nothing of CUDA."""
        emit("environment", "the environment of this rank", environment_event())

    def collect(self, step: int) -> Sequence[Samples]:
        """It does not change."""
        return ()

    def stop(self) -> None:
        """Nothing to end."""
