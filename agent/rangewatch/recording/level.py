"""What is recorded at each step: the kinds that were asked for, as traces raise them and the budget lowers them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rangewatch.core.options import LEVELS, OBSERVED_KINDS, Options
from rangewatch.core.selection import matches


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


class Recording:
    """Changed between steps, by the training thread."""

    def __init__(self, options: Options) -> None:
        self._asked = self.kinds = frozenset(options.kinds)
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
        self.kinds = self._asked if level == "default" else frozenset(LEVELS[level])

    def lower(self) -> bool:
        """Record the next fewer kinds, those of `outputs` or else of `grads`; False when there are none."""
        for level in ("outputs", "grads"):
            fewer = self.kinds & frozenset(LEVELS[level])
            if fewer and fewer != self.kinds:
                self.kinds = fewer
                return True
        return False
