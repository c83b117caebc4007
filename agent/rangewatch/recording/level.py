"""What is recorded at each step: the kinds that were asked for, as traces raise them and the budget lowers them.
And what it costs: the agent's own time on the training thread, measured on some steps, against the step's time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from statistics import median
from typing import Any, NamedTuple

import torch

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded
from rangewatch.core.options import LEVELS, OBSERVED_KINDS, Options
from rangewatch.core.selection import matches

_now_ns = time.perf_counter_ns


class Trace(NamedTuple):
    """Steps `first_step` to `last_step` in full: every kind of `modules` (patterns; none: all), the full set too."""

    first_step: int
    last_step: int
    modules: tuple[str, ...] = ()
    command: int | None = None
    """The server's command that asked for it."""

    def has(self, fqn: str) -> bool:
        """Whether the module or parameter with this clean name is traced."""
        return not self.modules or matches(fqn, self.modules)


LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})

OF_FORWARD = frozenset({"output", "grad_output", "input"})
"""The kinds that are read inside a compiled graph."""

NOT_READ = (
    "compiled in bfloat16 or float16, where reading outputs would change the losses in their last bits: they are not "
    'recorded. attach(level="outputs") records them'
)


class Recording:
    """Changed between steps, by the training thread.

    Inductor rounds to 16 bits where its fused kernels end, and what is read ends one. So a graph in low precision is
    read only where the user has named a level, or kinds, that are read there.
    """

    def __init__(self, options: Options) -> None:
        self._asked = self.kinds = frozenset(options.kinds)
        self._names_forward = options.names_kinds and not OF_FORWARD.isdisjoint(options.kinds)
        self.reads_low_precision = self._names_forward
        """Whether compiled graphs of bfloat16 or float16 are read; torch compiles anew where it changes."""
        self.has_low_precision = False
        """Whether such a graph has been compiled and is not read."""
        self._traces = [Trace(step, step) for step in options.trace_batch_nums]
        self._open: list[Trace] = []

    @property
    def is_traced(self) -> bool:
        """Whether the open step is recorded in full."""
        return bool(self._open)

    def begin_step(self, step: int) -> bool:
        """`step` is open; whether it records other things than the last one, as far as traces go."""
        was_open = self._open
        self._traces = [trace for trace in self._traces if trace.last_step >= step]
        self._open = [trace for trace in self._traces if trace.first_step <= step]
        return self._open != was_open

    def ended(self, step: int) -> list[int]:
        """The commands whose traces have their last step with `step`."""
        return [trace.command for trace in self._open if trace.command is not None and trace.last_step == step]

    def wanted(self, fqn: str) -> Collection[str]:
        """The kinds that are recorded of the module or parameter with this clean name at the open step."""
        return OBSERVED_KINDS if any(trace.has(fqn) for trace in self._open) else self.kinds

    def has(self, kind: str) -> bool:
        """Whether `kind` is recorded of anything at the open step."""
        return bool(self._open) or kind in self.kinds

    def trace(self, trace: Trace) -> None:
        """Record these steps in full too."""
        self._traces.append(trace)

    def set_level(self, level: str) -> None:
        """Record what `level` names from here on; `default`: what `attach` was asked for."""
        is_default = level == "default"
        self.kinds = self._asked if is_default else frozenset(LEVELS[level])
        self.reads_low_precision = self._names_forward if is_default else not OF_FORWARD.isdisjoint(self.kinds)

    @property
    def not_read(self) -> str:
        """Why compiled graphs are not read though their kinds are asked for; "" where they are."""
        is_hidden = self.has_low_precision and not self.reads_low_precision
        return NOT_READ if is_hidden and not OF_FORWARD.isdisjoint(self.kinds) else ""

    def lower(self) -> bool:
        """Record the next fewer kinds, those of `outputs` or else of `grads`; False when there are none."""
        for level in ("outputs", "grads"):
            fewer = self.kinds & frozenset(LEVELS[level])
            if fewer and fewer != self.kinds:
                self.kinds = fewer
                return True
        return False


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
