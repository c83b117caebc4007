"""What torch must not compile though compiled code calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def run_eagerly(function: Callable[..., Any]) -> None:
    """Where a graph breaks, torch would compile what it calls next, our hooks and all below them: not `function`.

    It is traced all the same as part of a module that is.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
