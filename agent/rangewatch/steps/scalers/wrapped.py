"""Optimizers around optimizers: Accelerate's, DeepSpeed's and Megatron's have the one they wrap in `optimizer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from rangewatch.steps.scalers.base import attribute, has_method

_DEPTH = 8
"""Optimizers inside one another that are looked into: Accelerate around DeepSpeed around torch is three."""


def wrapped_in(optimizer: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """`optimizer` and all inside it, the outer ones first. Also for an engine, which has its optimizer the same way."""
    if optimizer is None or depth == 0:
        return
    yield optimizer
    chained = attribute(optimizer, "chained_optimizers", ())
    for inner in chained if isinstance(chained, list | tuple) else ():
        yield from wrapped_in(inner, depth - 1)
    if not chained:
        yield from wrapped_in(attribute(optimizer, "optimizer"), depth - 1)


def stepping(optimizer: Any) -> Any:
    """Of all inside `optimizer`, the object whose `step` is called when a step is; None where nothing steps.

    What shows itself as a torch optimizer stands for the one inside: Accelerate's is called at each microbatch, as
    DeepSpeed's engine is. Any other wrapper itself, since a step is several calls of ZeRO's inner optimizer.
    """
    for each in wrapped_in(optimizer):
        shows_inner = isinstance(each, nn.Module) or callable(attribute(each, "register_step_post_hook"))
        passes_on = shows_inner and attribute(each, "optimizer") is not None
        if runs_hooks(each) or (not passes_on and has_method(each, "step")):
            return each
    return None


def runs_hooks(optimizer: Any) -> bool:
    """Whether torch calls the step hooks of `optimizer`: `Optimizer.__init__`, which wrappers leave out, sees to it."""
    is_hooked = getattr(getattr(type(optimizer), "step", None), "hooked", False)
    return isinstance(optimizer, Optimizer) and is_hooked and "_optimizer_step_post_hooks" in vars(optimizer)
