"""What is recorded at each step: the kinds that were asked for, as traces raise them and the budget lowers them.
And what it costs: the agent's own time on the training thread, and that of its reads on a device, measured on some
steps, against the step's time.
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
from rangewatch.statistics.fused import DeviceCost

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
"""The kinds that are read inside a compiled graph, and of which there is most to read."""

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
        self.every = 1
        """The kinds of `OF_FORWARD` are recorded at one step in so many: those that it divides."""
        self.reads_forward = True
        """Whether the open step is one of these."""

    @property
    def is_traced(self) -> bool:
        """Whether the open step is recorded in full."""
        return bool(self._open)

    def begin_step(self, step: int) -> bool:
        """`step` is open; whether it records other things than the last one, as far as traces go."""
        was = self._open, self.reads_forward
        self._traces = [trace for trace in self._traces if trace.last_step >= step]
        self._open = [trace for trace in self._traces if trace.first_step <= step]
        self.reads_forward = not step % self.every
        return (self._open, self.reads_forward) != was

    def ended(self, step: int) -> list[int]:
        """The commands whose traces have their last step with `step`."""
        return [trace.command for trace in self._open if trace.command is not None and trace.last_step == step]

    def wanted(self, fqn: str) -> Collection[str]:
        """The kinds that are recorded of the module or parameter with this clean name at the open step."""
        return OBSERVED_KINDS if any(trace.has(fqn) for trace in self._open) else self._usual

    def has(self, kind: str) -> bool:
        """Whether `kind` is recorded of anything at the open step."""
        return bool(self._open) or kind in self._usual

    @property
    def _usual(self) -> frozenset[str]:
        return self.kinds if self.reads_forward else self.kinds - OF_FORWARD

    def trace(self, trace: Trace) -> None:
        """Record these steps in full too."""
        self._traces.append(trace)

    def set_level(self, level: str) -> None:
        """Record what `level` names from here on; `default`: what `attach` was asked for."""
        is_default = level == "default"
        self.kinds, self.every = self._asked if is_default else frozenset(LEVELS[level]), 1
        self.reads_low_precision = self._names_forward if is_default else not OF_FORWARD.isdisjoint(self.kinds)

    @property
    def not_read(self) -> str:
        """Why compiled graphs are not read though their kinds are asked for; "" where they are."""
        is_hidden = self.has_low_precision and not self.reads_low_precision
        return NOT_READ if is_hidden and not OF_FORWARD.isdisjoint(self.kinds) else ""

    def lower(self, excess: float) -> str:
        """Record less, being `excess` times what is allowed: no inputs, then outputs at fewer steps, then none.

        Returns what is recorded from now on; "" where there is no less.
        """
        if self._lower_to("outputs"):
            return f"it records {', '.join(sorted(self.kinds))} only"
        read = sorted(self.kinds & OF_FORWARD)
        fewer = [every for every in limits.FORWARD_EVERY if every > self.every]
        if read and fewer:
            self.every = next((every for every in fewer if every >= self.every * excess), fewer[-1])
            return f"it records {', '.join(read)} at one step in {self.every}"
        return f"it records {', '.join(sorted(self.kinds))} only" if self._lower_to("grads") else ""

    def _lower_to(self, level: str) -> bool:
        fewer = self.kinds & frozenset(LEVELS[level])
        if not fewer or fewer == self.kinds:
            return False
        self.kinds, self.every = fewer, 1
        return True


class _Measured:
    """What a step took, the agent's part of it on the training thread, and, once it is known, on a device."""

    __slots__ = ("device", "host_s", "step", "step_s")

    def __init__(self, step: int, step_s: float, host_s: float) -> None:
        self.step, self.step_s, self.host_s = step, step_s, host_s
        self.device: DeviceCost | None = None

    @property
    def share(self) -> float:
        if self.device is None:
            return self.host_s / self.step_s
        # Where the training waits for its device, hooks wait in the device's full queue as all that queues does: of a
        # GPT of 350 M on an H100 65 ms of a step of 95 ms, though their reads cost it 19 ms.
        host_s = 0.0 if self.device.was_behind else self.host_s
        return max(host_s, self.device.seconds) / self.step_s


class Cost:
    """Counts the host time of hooks while `is_on`, and knows whether what the agent costs is above the budget.

    What torch needs to come to a hook is not in it: some microseconds a hook, which no hook can see.
    """

    def __init__(self, budget_percent: float) -> None:
        self.is_on = False
        self.spent_ns = 0
        self._step, self._every, self._is_light = 0, 1, False
        self.budget = budget_percent / 100
        """As a share of a step."""
        self._whole: deque[_Measured] = deque(maxlen=limits.COST_STEPS)
        self._light: deque[_Measured] = deque(maxlen=limits.COST_STEPS)
        """Of steps at which outputs are not read, as they are at others."""
        self._since_s = time.monotonic()

    def begin_step(self, step: int, every: int = 1) -> None:
        """`step` is open: one in `limits.COST_EVERY` is measured, and those with more to read where `every` is above 1:
        all of it is read at the steps that it divides."""
        self._step, self._every, self._is_light = step, every, bool(step % every)
        self.is_on = step % limits.COST_EVERY == 0 or (every > 1 and not self._is_light)
        self.spent_ns = 0

    def end_step(self, step_time_s: float | None, *, is_usual: bool) -> float | None:
        """Seconds of the agent in the step that ends, which took `step_time_s`; None where it was not measured.

        `is_usual` False (a full set, a trace) keeps it out of the judgement.
        """
        if not self.is_on:
            return None
        spent_s = self.spent_ns / 1e9
        if is_usual and step_time_s:
            of_its_kind = self._light if self._is_light else self._whole
            of_its_kind.append(_Measured(self._step, step_time_s, spent_s))
        return spent_s

    def add_device(self, step: int, cost: DeviceCost) -> None:
        """What the reads of a measured step took a device: known some steps later."""
        for each in (*self._whole, *self._light):
            if each.step == step:
                each.device = cost

    def excess(self) -> float | None:
        """The agent's share of the steps when it is above the budget for long enough; else None. A budget of 100 % lets
        all be: on a busy machine the agent's parts of tiny steps may measure as more than the steps."""
        if self.budget >= 1:
            return None
        is_split, is_early = self._every > 1, time.monotonic() - self._since_s < limits.COST_S
        least = limits.COST_STEPS // 2 if is_split else limits.COST_STEPS
        if is_early or len(self._whole) < least or (is_split and len(self._light) < least):
            return None
        share = _median_share(self._whole)
        if is_split:
            share = (share + (self._every - 1) * _median_share(self._light)) / self._every
        return share if share > self.budget else None

    def forget(self) -> None:
        """What is recorded has changed: judge anew."""
        self._whole.clear()
        self._light.clear()
        self._since_s = time.monotonic()

    def add(self, began_ns: int) -> None:
        """The agent has worked since `began_ns` (`time.perf_counter_ns`)."""
        self.spent_ns += _now_ns() - began_ns


def _median_share(measured: Collection[_Measured]) -> float:
    whole = [each for each in measured if each.device is not None]  # all of the last ones may not be known yet
    return median(each.share for each in whole or measured)


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
