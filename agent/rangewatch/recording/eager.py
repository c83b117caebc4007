"""What torch must not compile though compiled code calls it, and what must not be a part of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PROXY = getattr(getattr(torch._C, "_TorchDispatchModeKey", None), "PROXY", None)
_get_dispatch_mode: Callable[[Any], Any] = getattr(torch._C, "_get_dispatch_mode", lambda key: None)
_tracing_state = torch._C._get_tracing_state
_is_compiling = torch.compiler.is_compiling


def is_traced_now() -> bool:
    """Whether what is computed now becomes a part of a graph: of `torch.jit.trace`, `torch.export` or `make_fx`."""
    if _tracing_state() is not None or _is_compiling():
        return True
    return _PROXY is not None and _get_dispatch_mode(_PROXY) is not None


def run_eagerly(function: Callable[..., Any]) -> None:
    """Where a graph breaks, torch would compile what it calls next, our hooks and all below them: not `function`.

    It is traced all the same as part of a module that is.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
