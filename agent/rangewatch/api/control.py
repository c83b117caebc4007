"""Obeys the server's commands, on the training thread and between steps, and says what became of each.

An alert is a command too: `attach(on_alert=...)` says what this rank does when the server raises one of its run.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rangewatch.api.stop import Stopper
from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.core.options import LEVELS, ON_ALERT, Options
from rangewatch.core.selection import matches
from rangewatch.delivery.transport import Command, Raised
from rangewatch.recording.events import Events
from rangewatch.recording.level import Recording, Trace
from rangewatch.recording.whatif import Reading, WhatIfReader
from rangewatch.trackers.mirrors import Mirrors
from rangewatch.wire.events import AnswerState, CommandAnswer


@dataclasses.dataclass(frozen=True)
class Alert:
    """One of the rules' findings, as a function given as `on_alert` gets it. `severity`: critical, warning or info.

    `rank`, `step`, `tensor` and `kind` are None where the finding is of none in particular.
    """

    rule: str
    severity: str
    summary: str
    run: str
    rank: int | None
    step: int | None
    tensor: str | None
    kind: str | None


OnAlert = str | Callable[[Alert], object]


def action_for(on_alert: OnAlert, alert: Alert, guard: Guard) -> str:
    """One of `ON_ALERT`. A function is called, on the training thread; `record` when it says nothing of these.

    What the function raises is a fault of ours, and not of the training.
    """
    if not callable(on_alert):
        return on_alert
    answers: list[object] = []
    guard.run("on_alert", lambda: answers.append(on_alert(alert)))
    return next((each for each in answers if isinstance(each, str) and each in ON_ALERT), "record")


class Control:
    """`inbox` is filled by the sender's thread. `fqns`: the names of all that can be traced."""

    def __init__(
        self, recording: Recording, whatif: WhatIfReader, events: Events, fqns: Mapping[Any, str], stopper: Stopper,
        options: Options, run: str, guard: Guard, mirrors: Mirrors,
    ) -> None:  # fmt: skip
        self.inbox: deque[Command] = deque(maxlen=limits.COMMANDS)
        self._recording, self._events, self._fqns, self._stopper = recording, events, fqns, stopper
        self._whatif, self._mirrors = whatif, mirrors
        self._on_alert, self._run, self._guard = options.on_alert, run, guard
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
        reading = self._whatif.take_ended(step)
        if reading is not None:
            self._answer_reading(reading)
        return bool(ended) or reading is not None

    def _obey(self, command: Command, step: int) -> bool:
        if command.kind == "trace":
            self._trace(command, step)
        elif command.kind == "whatif":
            self._read_what_if(command, step)
        elif command.kind == "alert" and command.alert is not None:
            return self._alert(command, command.alert, step)
        elif command.kind == "level" and command.level in {*LEVELS, "default"}:
            self._recording.set_level(command.level)
            # No longer what the budget made of it.
            self._events.add("level", self._recording.not_read, {"kinds": sorted(self._recording.kinds)})
            self._answer(command.id, "done", f"level {command.level} from step {step} on", first_step=step)
            return True
        else:
            self._refuse(command, f"no command {command.kind} {command.level}".rstrip())
        return False

    def _alert(self, command: Command, raised: Raised, step: int) -> bool:
        """Whether the level is another."""
        self._mirrors.alert(raised)
        alert = Alert(run=self._run, **msgspec.structs.asdict(raised))
        action = action_for(self._on_alert, alert, self._guard)
        if action == "stop":
            self._stopper.ask(f"rangewatch: stopped by an alert ({raised.rule}): {raised.summary}")
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
        elif modules and not any(matches(fqn, modules) for fqn in list(self._fqns.values())):
            self._refuse(command, f"no module is named {', '.join(modules)[: limits.NAME_CHARACTERS]}")
        else:
            last = step + command.steps - 1
            self._recording.trace(Trace(step, last, modules, command.id))
            message = f"tracing steps {step} to {last} in full"
            self._answer(command.id, "accepted", message, first_step=step, last_step=last)

    def _read_what_if(self, command: Command, step: int) -> None:
        refused = self._whatif.request(command.id, tuple(command.modules), step)
        if refused:
            self._refuse(command, refused)
        else:
            self._answer(command.id, "accepted", f"what if: reading from step {step + 1} on", first_step=step + 1)

    def _answer_reading(self, reading: Reading) -> None:
        if not reading.read:
            reason = "none of the tensors was read: they are not in host memory, or not read in each step"
            self._answer(reading.command, "refused", reason, reason=reason)
            return
        steps = {"first_step": reading.first_step, "last_step": reading.last_step}
        self._answer(reading.command, "done", f"what if: {reading.read} of {reading.asked} tensors read", **steps)

    def _refuse(self, command: Command, reason: str) -> None:
        self._answer(command.id, "refused", reason, reason=reason)

    def _answer(self, command: int, state: AnswerState, message: str, **data: Any) -> None:
        self._events.add(CommandAnswer(command, state, **data), message)
