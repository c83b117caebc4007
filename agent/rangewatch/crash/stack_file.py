"""faulthandler's file in memory that outlives the process: the Python stacks of a segmentation fault, an abort and
their like.

There is one faulthandler a process. Where it is in use already it is left alone, and from the moment that somebody else
enables or disables it too. Until then others are told that it is off: "on if it is off" stays what it was.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from typing import Any

from rangewatch.recording.memory.anonymous_file import IS_SUPPORTED


class StackFile:
    """The one of this process, for as long as any attached model wants it."""

    _lock = threading.Lock()
    _users = 0
    _descriptor = -1
    _is_ours = False
    _originals: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # noqa: RUF012 - one a process

    @classmethod
    def open(cls) -> int:
        """Its descriptor, or -1 where faulthandler is somebody else's. Each call needs a `close`."""
        with cls._lock:
            cls._users += 1
            if cls._users == 1 and IS_SUPPORTED and not faulthandler.is_enabled():
                cls._enable()
            return cls._descriptor

    @classmethod
    def close(cls) -> None:
        """The last of them gives faulthandler back."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and cls._descriptor >= 0:
                cls._disable()

    @classmethod
    def forked(cls) -> None:
        """In a forked child, whose faults are not the rank's: they go nowhere, or to a file of its own."""
        cls._lock = threading.Lock()
        cls._users = 0
        if cls._descriptor >= 0:
            cls._disable()

    @classmethod
    def _enable(cls) -> None:
        cls._descriptor = os.memfd_create("rangewatch-stack", os.MFD_CLOEXEC)
        faulthandler.enable(cls._descriptor, all_threads=True)
        cls._is_ours = True
        wrapped = {"enable": cls._taken_by, "disable": cls._taken_by, "is_enabled": cls._hidden_from}
        for name, wrap in wrapped.items():
            original = getattr(faulthandler, name)
            wrapper = wrap(original)
            cls._originals[name] = original, wrapper
            setattr(faulthandler, name, wrapper)

    @classmethod
    def _disable(cls) -> None:
        for name, (original, wrapper) in cls._originals.items():
            if getattr(faulthandler, name) is wrapper:
                setattr(faulthandler, name, original)
        if cls._is_ours:
            cls._originals["disable"][0]()
        os.close(cls._descriptor)
        cls._originals, cls._descriptor, cls._is_ours = {}, -1, False

    @classmethod
    def _taken_by(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        def used(*args: Any, **kwargs: Any) -> Any:
            cls._is_ours = False
            return original(*args, **kwargs)

        return used

    @classmethod
    def _hidden_from(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: not cls._is_ours and original()
