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
    from rangewatch.watched_values import detect_overflow as detect_overflow

__version__ = "0.1.0"
__all__ = ["Handle", "__version__", "attach", "detach", "detect_overflow"]


def __getattr__(name: str) -> Any:
    if name in {"Handle", "attach", "detach"}:
        return getattr(importlib.import_module("rangewatch.attachment"), name)
    if name == "detect_overflow":
        return importlib.import_module("rangewatch.watched_values").detect_overflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
