"""What torch must not compile though compiled code calls it, what must not be a part of a trace, and what no mode is to
see of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_keys = getattr(torch._C, "_TorchDispatchModeKey", None)
_TRACING = [key for name in ("PROXY", "FAKE") if (key := getattr(_keys, name, None)) is not None]
_get_dispatch_mode: Callable[[Any], Any] = getattr(torch._C, "_get_dispatch_mode", lambda key: None)
_tracing_state = torch._C._get_tracing_state
_mode_count: Callable[[], int] = torch._C._len_torch_dispatch_stack
_nothing = contextlib.nullcontext()
_is_compiling = torch.compiler.is_compiling


def is_traced_now() -> bool:
    """Whether what is computed now becomes a part of a graph, of `torch.jit.trace`, `torch.export` or `make_fx`, or is
    of tensors without memory."""
    if _tracing_state() is not None or _is_compiling():
        return True
    return any(_get_dispatch_mode(key) is not None for key in _TRACING) if _mode_count() else False


def hidden_from_modes(values: Iterable[Any] = ()) -> contextlib.AbstractContextManager[Any]:
    """A context in which the `TorchDispatchMode`s that are on hear of nothing. Not where one of `values`, all that is
    computed with, is of a subclass that computes by itself, such as a DTensor.

    Selective activation checkpointing counts a region's operations, and gives those that it computes again what it has
    kept of the first ones of their kind: of ours, if there were any.
    """
    if not _mode_count():
        return _nothing
    is_plain = all(
        type(each).__torch_dispatch__ is Tensor.__torch_dispatch__ for each in values if isinstance(each, Tensor)
    )
    return torch._C._DisableTorchDispatch() if is_plain else _nothing


def run_eagerly(function: Callable[..., Any]) -> None:
    """Where a graph breaks, torch would compile what it calls next, our hooks and all below them: not `function`.

    It is traced all the same as part of a module that is.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
