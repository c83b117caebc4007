"""What the agent costs: its own time on the training thread, measured on some steps, against the step's time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded

_now_ns = time.perf_counter_ns


class Cost:
    """Counts the host time of hooks while `is_on`, and knows whether that is above the budget.

    What torch needs to come to a hook is not in it: some microseconds a hook, which no hook can see.
    """

    def __init__(self, budget_percent: float) -> None:
        self.is_on = False
        self.spent_ns = 0
        self._budget = budget_percent / 100
        self._shares: deque[float] = deque(maxlen=limits.COST_STEPS)
        self._since_s = time.monotonic()

    def begin_step(self, step: int) -> None:
        """`step` is open: one in `limits.COST_EVERY` is measured."""
        self.is_on = step % limits.COST_EVERY == 0
        self.spent_ns = 0

    def end_step(self, step_time_s: float | None, *, is_usual: bool) -> float | None:
        """Seconds of the agent in the step that ends, which took `step_time_s`; None where it was not measured.

        `is_usual` False (a full set, a trace) keeps it out of the judgement.
        """
        if not self.is_on:
            return None
        spent_s = self.spent_ns / 1e9
        if is_usual and step_time_s:
            self._shares.append(spent_s / step_time_s)
        return spent_s

    def excess(self) -> float | None:
        """The agent's share of the step when it is above the budget for long enough; else None."""
        if len(self._shares) < limits.COST_STEPS or time.monotonic() - self._since_s < limits.COST_S:
            return None
        share = median(self._shares)
        return share if share > self._budget else None

    def forget(self) -> None:
        """What is recorded has changed: judge anew."""
        self._shares.clear()
        self._since_s = time.monotonic()

    def add(self, began_ns: int) -> None:
        """The agent has worked since `began_ns` (`time.perf_counter_ns`)."""
        self.spent_ns += _now_ns() - began_ns


class TimedHook(Guarded):
    """A guarded hook whose time counts."""

    __slots__ = ("cost",)

    def __init__(self, guard: Guard, place: str, body: Callable[..., Any], cost: Cost) -> None:
        super().__init__(guard, place, body)
        self.cost = cost

    def __call__(self, *args: Any) -> None:
        began_ns = _now_ns() if self.cost.is_on else 0
        try:
            self.body(*args)
        except Exception as error:  # noqa: BLE001 - the guard's own clause again: calling it costs 0.2 us a hook
            self.fault(error)
        if began_ns:
            self.cost.add(began_ns)
