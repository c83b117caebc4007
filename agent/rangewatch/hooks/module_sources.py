"""Where a model's modules are written: file and line of the `forward` of each class. Read once, at attach."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from types import CodeType
from typing import Any, TypeVar

from torch import nn

from rangewatch.core import limits
from rangewatch.recording.events import sendable
from rangewatch.wire.events import ModuleClass, Modules

_WRAPPERS = 16  # decorators around one `forward`
_T = TypeVar("_T")
_PACKAGES = ("site-packages", "dist-packages")


def module_sources(modules: Mapping[str, nn.Module]) -> Modules:
    """The details of the event `modules`.

    A tensor is sent with the bare name of its module's class, so `of` says which class a module is of only where
    several have that name.
    """
    classes = list(dict.fromkeys(type(module) for module in modules.values()))[: limits.MODULE_CLASSES]
    names = Counter(each.__name__ for each in classes)
    roots = _roots()
    reported = _bounded(_module_class(each, roots) for each in classes)
    places = {each: at for at, each in enumerate(classes[: len(reported)])}
    of = [(sendable(fqn), places[type(each)]) for fqn, each in modules.items() if type(each) in places]
    shared = [(fqn, place) for fqn, place in of if names[classes[place].__name__] > 1]
    return Modules(tuple(reported), dict(_bounded(shared[: limits.MODULES_SENT])))


def _bounded(items: Iterable[_T]) -> list[_T]:
    """The first of them, up to so many bytes as text."""
    first: list[_T] = []
    left = limits.MODULE_SOURCE_BYTES
    for item in items:
        left -= len(repr(item).encode("utf-8", "replace"))
        if left < 0:
            break
        first.append(item)
    return first


def _module_class(of: type, roots: list[str]) -> ModuleClass:
    code = _forward(of)
    source = None if code is None else sendable(f"{short_path(code.co_filename, roots)}:{code.co_firstlineno}")
    return ModuleClass(sendable(of.__name__), sendable(f"{of.__module__}.{of.__qualname__}"), source)


def _forward(of: type) -> CodeType | None:
    """None for what has no forward, such as a ModuleList, and for one that is not written in Python."""
    forward: Any = getattr(of, "forward", None)
    if forward is nn.Module.forward:
        return None
    for _ in range(_WRAPPERS):
        inner = getattr(forward, "__wrapped__", None)
        if inner is None:
            break
        forward = inner
    code = getattr(forward, "__code__", None)
    return code if isinstance(code, CodeType) else None


def short_path(path: str, roots: Iterable[str]) -> str:
    """From the folder of installed packages on, or from the first of `roots` that holds it, longest first; or all."""
    parts = PurePath(path).parts
    for at in range(len(parts) - 1, 0, -1):
        if parts[at - 1] in _PACKAGES:
            return "/".join(parts[at:])
    root = next((each for each in roots if path.startswith(each)), "")
    return path[len(root) :]


def _roots() -> list[str]:
    """The working directory, and then what Python imports from, longest first; each ends in a separator."""
    try:
        here = [str(Path.cwd())]
    except OSError:  # it was deleted
        here = []
    imported = {each for each in sys.path if isinstance(each, str) and PurePath(each).is_absolute()}
    folders = [each.rstrip(os.sep) for each in [*here, *sorted(imported, key=len, reverse=True)]]
    return [each + os.sep for each in folders if each]
