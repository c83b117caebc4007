"""What this rank does when the server raises an alert of its run: `attach(on_alert=...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rangewatch.core.guard import Guard
from rangewatch.core.options import ON_ALERT


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
    said: list[object] = []
    guard.run("on_alert", lambda: said.append(on_alert(alert)))
    return next((each for each in said if isinstance(each, str) and each in ON_ALERT), "record")
