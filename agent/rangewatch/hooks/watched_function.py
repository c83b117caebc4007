"""A function of a library's, wrapped once a process while anybody listens: called after each call from Python code.

Inside what is compiled nobody hears of it. `calling_module` says in which module's forward a call stands, and
`function_context` in which function of autograd's.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from rangewatch.core.patched_function import PatchedFunction

_is_compiling = torch.compiler.is_compiling
_graph_task_id = torch._C._current_graph_task_id
_current_node: Any = getattr(torch._C, "_current_autograd_node", None)
_FRAMES = 16  # from the call outwards, in which the module that calls is looked for
_CALL: CodeType | None = getattr(getattr(nn.Module, "_wrapped_call_impl", None), "__code__", None)

Read = Callable[[tuple[Any, ...], Mapping[str, Any], Any], Any]
"""Makes of positional and keyword arguments, and of what was returned, what a listener reads. It may raise."""


def calling_module(frame: FrameType | None, fqns: WeakKeyDictionary[nn.Module, str]) -> tuple[nn.Module, str] | None:
    """The innermost module of `fqns` in whose call `frame` stands, and its name.

    Up to Python 3.12 to look at a frame's locals makes a copy that keeps all of them until the frame returns, and
    changes what `locals()` has given there. So only torch's own frame is looked at, which has the arguments anyway.
    """
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code is _CALL:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and (fqn := fqns.get(module)) is not None:
                return module, fqn
        frame = frame.f_back
    return None


def function_context(frame: FrameType | None, frames: int = 1) -> FunctionCtx | None:
    """The `ctx` of a function of autograd's in whose forward or backward `frame` stands, or one of the `frames` from it
    outwards. Only those are looked at whose first argument has this name.
    """
    for _ in range(frames):
        if frame is None:
            return None
        if frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "ctx":
            ctx = frame.f_locals.get("ctx")
            return ctx if isinstance(ctx, FunctionCtx) else None
        frame = frame.f_back
    return None


def is_backward_of(ctx: FunctionCtx) -> bool:
    """Whether autograd runs the backward of `ctx` right now: not so in a forward that is computed a second time."""
    return _graph_task_id() != -1 and (_current_node is None or _current_node() is ctx)


class WatchedFunction:
    """`name` of a module of Python's, or of the class in it that `owner` has behind a colon. Where nobody has imported
    it nobody calls it, and nothing is wrapped. Listeners get `(frame of the caller, read, arguments, keyword arguments,
    what was returned)`, and call `read` where they are guarded.
    """

    def __init__(self, owner: str, name: str, read: Read) -> None:
        self._owner, self._name, self._read = owner, name, read
        self._function: PatchedFunction | None = None
        self._listeners: tuple[Callable[..., None], ...] = ()
        """Replaced and never changed: any thread may call."""
        self._lock = threading.Lock()
        self._registered: tuple[Any, Any] | None = None
        """The function and our wrapper, once TorchScript knows that one by its `id`: it must never be another's."""

    def listen(self, listener: Callable[..., None]) -> None:
        """Call `listener` after each call from here on; nothing where it is called already."""
        owner = self._find()
        with self._lock:
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)
            if self._function is None and owner is not None:
                self._function = PatchedFunction(owner, self._name)
            if self._function is not None:
                self._function.install(self._around)

    def forget(self, listener: Callable[..., None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)
            if not self._listeners and self._function is not None:
                self._function.remove()

    def _find(self) -> Any:
        module, _, name = self._owner.partition(":")
        found = sys.modules.get(module)
        return getattr(found, name, None) if name else found

    def _around(self, own: Any) -> Any:
        if self._registered is not None and self._registered[0] is own:
            return self._registered[1]
        function = own.__func__ if isinstance(own, staticmethod) else own

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            out = function(*args, **kwargs)
            if not _is_compiling():  # inside a graph nothing of ours is called
                for each in self._listeners:
                    each(sys._getframe(1), self._read, args, kwargs, out)
            return out

        watched.__module__, watched.__qualname__ = self._owner.replace(":", "."), self._name  # found where it is
        wrapper = staticmethod(watched) if isinstance(own, staticmethod) else watched
        with contextlib.suppress(Exception):  # TorchScript knows builtin functions by themselves
            builtins: Any = torch.jit._builtins
            known = builtins._find_builtin(function)
            if known is not None:
                self._registered = own, wrapper
                builtins._register_builtin(watched, known)
        return wrapper
