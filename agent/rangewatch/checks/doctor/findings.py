"""What is found: its name, how bad it is, what, why it matters, what to type, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Details = dict[str, Any]
"""What `details.environment` returns: one rank's."""

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Worst first. `error`: something fails, or will. `warning`: slow, or not what was meant. `info`: good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or odd, with an environment."""

    code: str
    """Stable name of the rule's case, such as `toolkit_mismatch`."""
    severity: Severity
    what: str
    why: str
    do: str
    """What to type."""
    where: str = ""
    """The variable, file or folder that it is about."""


Rule = Callable[[Details], Iterable[Finding]]
"""Judges the details of one rank. Pure."""
