"""Rangewatch: live numerics and health for multi-GPU training.

The public names load torch when they are first used, so that `import rangewatch.wire` (the server's part) does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rangewatch.core.version import VERSION

if TYPE_CHECKING:
    from rangewatch.api.attachment import Handle as Handle
    from rangewatch.api.attachment import attach as attach
    from rangewatch.api.attachment import batch as batch
    from rangewatch.api.attachment import detach as detach
    from rangewatch.api.control import Alert as Alert
    from rangewatch.api.stop import NumericOverflow as NumericOverflow
    from rangewatch.core.guard import TrainingStopped as TrainingStopped
    from rangewatch.hooks.watched_values import detect_overflow as detect_overflow

__version__ = VERSION
__all__ = [
    "Alert", "Handle", "NumericOverflow", "TrainingStopped", "__version__", "attach", "batch", "detach",
    "detect_overflow",
]  # fmt: skip

_HOMES = {
    "Alert": "api.control",
    "Handle": "api.attachment",
    "NumericOverflow": "api.stop",
    "TrainingStopped": "core.guard",
    "attach": "api.attachment",
    "batch": "api.attachment",
    "detach": "api.attachment",
    "detect_overflow": "hooks.watched_values",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"rangewatch.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
