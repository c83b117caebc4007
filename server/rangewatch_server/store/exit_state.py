"""How a process of a rank has ended, from its own last events and from what its watcher saw."""

from __future__ import annotations

import signal

from rangewatch.wire.events import Died, Failed, read
from rangewatch.wire.records import Event

OPEN, FINISHED, TERMINATED, INTERRUPTED = "open", "finished", "terminated", "interrupted"
DIED, FAILED = "died", "failed"

STATES = (OPEN, FINISHED, TERMINATED, INTERRUPTED, DIED, FAILED)
"""Of a stream; a later one of these is not taken back by an earlier one. `terminated`: by SIGTERM, from outside;
`interrupted`: by Ctrl-C."""

ENDED = frozenset(STATES[1:])


def state_after(state: str, event: Event) -> str:
    """The state of a stream that was in `state`, after an event of its process or of the watcher."""
    new_state = _state_of(event)
    return new_state if STATES.index(new_state) > STATES.index(state) else state


def _state_of(event: Event) -> str:
    if event.kind == FAILED:
        details = read(Failed, event.data)
        return INTERRUPTED if details is not None and details.interrupted else FAILED
    if event.kind == FINISHED:
        return FINISHED
    if event.kind != Died.KIND:
        return OPEN
    ending = read(Died, event.data) or Died()
    if ending.signal == signal.SIGTERM:
        return TERMINATED
    if ending.signal == signal.SIGINT:
        return INTERRUPTED
    went_well = ending.replaced if ending.exit_code is None else ending.exit_code == 0
    return FINISHED if not ending.signal and went_well else DIED
