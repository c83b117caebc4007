"""The phases of a step, and the sum of a step's slices by phase."""

from __future__ import annotations

from collections.abc import Collection

PHASES = ("data_wait", "forward", "backward", "exposed_comm", "optimizer", "other")
DATA_WAIT, FORWARD, BACKWARD, EXPOSED_COMM, OPTIMIZER, OTHER = PHASES

SERIES = {phase: f"{phase}_s" for phase in PHASES}
"""The series that each is recorded in, in seconds a step."""

_LATE_FROM = (BACKWARD, OTHER, FORWARD, OPTIMIZER)
"""Where communication that is reported after it happened is taken from: first where DDP waits for it."""


class Spent:
    """Seconds by phase. They add up to the slices' sum."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._exposed = dict.fromkeys(PHASES, 0.0)
        self._late_s = 0.0

    def add(self, phase: str, slice_s: float, exposed_s: float) -> None:
        """A slice of `phase`, of which `exposed_s` was communication; what does not fit happened in an earlier one."""
        if not exposed_s:
            self.seconds[phase] += slice_s
            return
        here_s = min(max(exposed_s, 0.0), slice_s)
        self.seconds[phase] += slice_s - here_s
        self._exposed[phase] += here_s
        self._late_s += max(exposed_s - here_s, 0.0)

    def series(self, known: Collection[str]) -> dict[str, float]:
        """Seconds by the name of the series, of the phases that are `known`. Call it once, at the end.

        Where communication is not known after all, what was reported of it stays in the phase that it happened in.
        """
        if EXPOSED_COMM not in known:
            return {SERIES[phase]: self.seconds[phase] + self._exposed[phase] for phase in PHASES if phase in known}
        self.seconds[EXPOSED_COMM] += sum(self._exposed.values())
        for phase in _LATE_FROM:
            moved_s = min(self._late_s, self.seconds[phase])
            self._late_s -= moved_s
            self.seconds[phase] -= moved_s
            self.seconds[EXPOSED_COMM] += moved_s
        return {SERIES[phase]: seconds for phase, seconds in self.seconds.items() if phase in known}
