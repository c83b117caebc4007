"""A module that is imported when it is first used: each of pytest's workers collects the tests of large libraries."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Has what the module has; whatever looks at all that is there, as pytest does, imports nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
