"""Event `state_loaded`: an optimizer was given another state, as by `load_state_dict`, while it was watched."""

from __future__ import annotations

import contextlib
from typing import Any

from rangewatch.core.guard import Guard, Guarded
from rangewatch.recording.events import Events
from rangewatch.recording.observer import Observer
from rangewatch.wire.events import StateLoaded

MOST_EVENTS = 32
"""Of an optimizer: one that is given a state so often is given it by design."""


class StateLoads:
    """Of one optimizer. It reads no tensor, and an optimizer's copy or pickle has no hook of ours."""

    def __init__(self, guard: Guard, observer: Observer, events: Events) -> None:
        self._guard, self._observer, self._events = guard, observer, events
        self._count = 0

    def watch(self, optimizer: Any, undo: contextlib.ExitStack) -> None:
        """Hook `optimizer`, where it can be hooked; `undo` gets what ends that."""
        register = getattr(optimizer, "register_load_state_dict_post_hook", None)
        if callable(register):
            undo.callback(register(Guarded(self._guard, "loaded state", self._loaded)).remove)

    def _loaded(self, optimizer: Any) -> None:
        if self._observer.is_active and self._count < MOST_EVENTS:
            self._count += 1
            self._events.add(StateLoaded(type(optimizer).__name__))
