"""Calls `watch.install` once torch has been imported, by whatever imports it; nothing is imported for its sake."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "torch"


def install() -> None:
    """Wait for torch, or begin at once where it is there."""
    if PACKAGE in sys.modules:
        _begin()
    else:
        sys.meta_path.insert(0, _Finder())


def _begin() -> None:
    try:
        importlib.import_module("rangewatch.autoattach.watch").install()
    except Exception as error:  # noqa: BLE001 - whatever it is, the script must run
        sys.stderr.write(f"rangewatch: not attached: {type(error).__name__}: {error}\n")


class _Finder(MetaPathFinder):
    """Finds torch as the others do, and gives it a loader that says when it is done."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        _begin()
