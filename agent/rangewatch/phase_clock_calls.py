"""A function of torch's that is wrapped once a process, while any clock wants to know when the process is in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rangewatch.compiled import run_eagerly
from rangewatch.guard import Guard, Guarded
from rangewatch.phase_clock import PhaseClock


class _Listener(NamedTuple):
    clock: PhaseClock
    enter: Guarded
    leave: Guarded


class PhaseCall:
    """`name` of `owner`, a class or a module: each call of it is `phase` to the clocks that were added."""

    def __init__(self, owner: Any, name: str, phase: str) -> None:
        self._owner, self._name, self._phase = owner, name, phase
        self._own: Any = None
        self._wrapper: Any = None
        self._listeners: tuple[_Listener, ...] = ()
        """Replaced and never changed: another thread may be in the call."""

    def add(self, clock: PhaseClock, guard: Guard) -> Callable[[], None]:
        """Tell `clock` from here on; returns what ends that. A torch that has no such function is let be."""
        listener = _Listener(
            clock,
            Guarded(guard, self._phase, functools.partial(clock.enter, self._phase)),
            Guarded(guard, self._phase, functools.partial(clock.leave, self._phase)),
        )
        self._listeners = (*self._listeners, listener)
        self._install()
        return functools.partial(self._remove, clock)

    def _remove(self, clock: PhaseClock) -> None:
        self._listeners = tuple(each for each in self._listeners if each.clock is not clock)
        # What somebody else has wrapped on top of us stays, and calls ours, which then does nothing.
        if not self._listeners and vars(self._owner).get(self._name) is self._wrapper is not None:
            setattr(self._owner, self._name, self._own)
            self._wrapper = None

    def _install(self) -> None:
        present = vars(self._owner).get(self._name)
        is_gone = self._wrapper is None or present is self._own
        if present is not None and is_gone:
            self._own, self._wrapper = present, self._wrap(present)
            setattr(self._owner, self._name, self._wrapper)

    def _wrap(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def timed(*args: Any, **kwargs: Any) -> Any:
            listeners = self._listeners
            for each in listeners:
                each.enter()
            try:
                return own(*args, **kwargs)
            finally:
                for each in listeners:
                    each.leave()

        run_eagerly(timed)
        return timed
