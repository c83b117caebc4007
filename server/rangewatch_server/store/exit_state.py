"""How a process of a rank has ended, from its own last events and from what its watcher saw."""

from __future__ import annotations

import signal

from rangewatch.wire.records import Event

OPEN, FINISHED, TERMINATED, DIED, FAILED = "open", "finished", "terminated", "died", "failed"

STATES = (OPEN, FINISHED, TERMINATED, DIED, FAILED)
"""Of a stream; a later one of these is not taken back by an earlier one. `terminated`: by SIGTERM, from outside."""

ENDED = frozenset(STATES[1:])


def state_after(state: str, event: Event) -> str:
    """The state of a stream that was in `state`, after an event of its process or of the watcher."""
    found = _said(event)
    return found if STATES.index(found) > STATES.index(state) else state


def _said(event: Event) -> str:
    if event.kind in (FINISHED, FAILED):
        return event.kind
    if event.kind != "died":
        return OPEN
    number, code = event.data.get("signal"), event.data.get("exit_code")
    if number == signal.SIGTERM:
        return TERMINATED
    went_well = event.data.get("replaced") is True if code is None else code == 0
    return FINISHED if not number and went_well else DIED
