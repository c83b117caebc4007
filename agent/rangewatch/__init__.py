"""Rangewatch: live numerics and health for multi-GPU training.

The public names load torch when they are first used, so that `import rangewatch.wire` (the server's part) does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rangewatch.attachment import Handle as Handle
    from rangewatch.attachment import attach as attach
    from rangewatch.attachment import detach as detach
    from rangewatch.guard import TrainingStopped as TrainingStopped
    from rangewatch.on_alert import Alert as Alert
    from rangewatch.stop import NumericOverflow as NumericOverflow
    from rangewatch.watched_values import detect_overflow as detect_overflow

__version__ = "0.1.0"
__all__ = [
    "Alert", "Handle", "NumericOverflow", "TrainingStopped", "__version__", "attach", "detach", "detect_overflow",
]  # fmt: skip

_HOMES = {
    "Alert": "on_alert",
    "Handle": "attachment",
    "NumericOverflow": "stop",
    "TrainingStopped": "guard",
    "attach": "attachment",
    "detach": "attachment",
    "detect_overflow": "watched_values",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"rangewatch.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
