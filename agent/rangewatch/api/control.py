"""Obeys the server's commands, on the training thread and between steps, and says what became of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rangewatch.core import limits
from rangewatch.core.options import LEVELS
from rangewatch.core.selection import matches
from rangewatch.delivery.transport import Command, Raised
from rangewatch.recording.level import Recording, Trace

Tell = Callable[[str, str, dict[str, Any]], None]


class Control:
    """`inbox` is filled by the sender's thread; `emit(kind, message, data)` ships an event."""

    def __init__(self, recording: Recording, emit: Tell) -> None:
        self.inbox: deque[Command] = deque(maxlen=limits.COMMANDS)
        self.fqns: Callable[[], Iterable[str]] = lambda: ()
        """The names of all that can be traced."""
        self.on_alert: Callable[[Raised], str] = lambda alert: "record"
        """What to do about an alert: one of `options.ON_ALERT`."""
        self.stop: Callable[[str], None] = lambda reason: None
        """Ends the training after the open step."""
        self._recording, self._emit = recording, emit
        self._known: deque[int] = deque(maxlen=limits.COMMANDS)

    def begin_step(self, step: int) -> bool:
        """Obey what has arrived: `step` is the first that is recorded so. Whether the level is another."""
        changed = False
        while self.inbox:
            command = self.inbox.popleft()
            if command.id not in self._known:
                self._known.append(command.id)
                changed |= self._obey(command, step)
        return changed

    def end_step(self, step: int) -> bool:
        """`step` is closed: whether a trace is done with it."""
        ended = self._recording.ended(step)
        for command in ended:
            self._answer(command, "done", f"trace done with step {step}", last_step=step)
        return bool(ended)

    def _obey(self, command: Command, step: int) -> bool:
        if command.kind == "trace":
            self._trace(command, step)
        elif command.kind == "alert" and command.alert is not None:
            return self._alert(command, command.alert, step)
        elif command.kind == "level" and command.level in {*LEVELS, "default"}:
            self._recording.set_level(command.level)
            self._emit("level", "", {"kinds": sorted(self._recording.kinds)})  # no longer what the budget made of it
            self._answer(command.id, "done", f"level {command.level} from step {step} on", first_step=step)
            return True
        else:
            self._refuse(command, f"no command {command.kind} {command.level}".rstrip())
        return False

    def _alert(self, command: Command, raised: Raised, step: int) -> bool:
        """Whether the level is another."""
        action = self.on_alert(raised)
        if action == "stop":
            self.stop(f"rangewatch: stopped by an alert ({raised.rule}): {raised.summary}")
        elif action == "trace":
            self._recording.trace(Trace(step, step))
        elif action == "grads":
            self._recording.set_level("grads")
        self._answer(command.id, "done", f"alert {raised.rule}: {action}", first_step=step)
        return action == "grads"

    def _trace(self, command: Command, step: int) -> None:
        modules = tuple(command.modules)
        if not 1 <= command.steps <= limits.TRACE_STEPS:
            self._refuse(command, f"a trace has 1 to {limits.TRACE_STEPS} steps")
        elif modules and not any(matches(fqn, modules) for fqn in self.fqns()):
            self._refuse(command, f"no module is named {', '.join(modules)[: limits.NAME_CHARACTERS]}")
        else:
            last = step + command.steps - 1
            self._recording.trace(Trace(step, last, modules, command.id))
            message = f"tracing steps {step} to {last} in full"
            self._answer(command.id, "accepted", message, first_step=step, last_step=last)

    def _refuse(self, command: Command, reason: str) -> None:
        self._answer(command.id, "refused", reason, reason=reason)

    def _answer(self, command: int, state: str, message: str, **data: Any) -> None:
        self._emit("command", message, {"id": command, "state": state} | data)
