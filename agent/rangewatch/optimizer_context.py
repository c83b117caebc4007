"""What the optimizer knows of parameters that are bad, or of those beside a bad output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from rangewatch import limits

_SETTINGS = ("lr", "eps", "weight_decay", "momentum", "amsgrad")

Facts = Callable[[str, Tensor], dict[str, Any] | None]


def optimizer_facts(
    optimizers: Sequence[Any], parameters: Sequence[tuple[str, nn.Parameter | None]], facts: Facts
) -> dict[str, Any]:
    """`optimizer`: class, settings and the state's tensors of the first of `parameters` that one has.

    Empty where none has any. `facts(name, tensor)` is None for what is not told.
    """
    for name, parameter in parameters[: limits.CONTEXT_TENSORS]:
        for optimizer in optimizers:
            group = None if parameter is None else _group_of(optimizer, parameter)
            if group is not None:
                settings = {each: number for each in _SETTINGS if (number := _number(group.get(each))) is not None}
                state = getattr(optimizer, "state", {}).get(parameter, {})
                tensors = ((key, value) for key, value in state.items() if isinstance(value, Tensor) and value.dim())
                told = [known for key, value in tensors if (known := facts(str(key), value)) is not None]
                return {"optimizer": {"class": type(optimizer).__name__, "parameter": name, **settings, "state": told}}
    return {}


def _group_of(optimizer: Any, parameter: nn.Parameter) -> dict[str, Any] | None:
    groups = getattr(optimizer, "param_groups", ())
    return next((group for group in groups if any(each is parameter for each in group["params"])), None)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.is_cpu and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None
