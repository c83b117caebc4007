"""torch.amp.GradScaler, its CUDA-named subclass, FSDP's ShardedGradScaler, and whatever is made like them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rangewatch.steps.scalers.base import Kind, Values, attribute, has_method

SETTINGS = ("growth_interval", "growth_factor", "backoff_factor")
"""What says how the scale changes: docs/wire.md has the event that tells of it."""


class GradScaler(Kind):
    """Settles a step in `update()`. `found_inf` lies in `_per_optimizer_states` until then, and `scale` in `_scale`.

    ShardedGradScaler has summed `found_inf` over the ranks in `unscale_`: what is read is what all ranks agree on.
    """

    def fits(self, candidate: Any) -> bool:
        """`scale`, `step` and `update` are methods."""
        return all(has_method(candidate, name) for name in ("scale", "step", "update"))

    def is_scaling(self, scaler: Any) -> bool:
        """Unless it is disabled."""
        return self.is_enabled(scaler)

    def is_enabled(self, scaler: Any) -> bool:
        """One that cannot say so is."""
        answer = getattr(scaler, "is_enabled", None)
        return bool(answer()) if callable(answer) else True

    def is_due(self, scaler: Any) -> bool:
        """`update(new_scale)` by itself, before anything was unscaled, sets the scale and ends nothing."""
        return not self.is_enabled(scaler) or bool(getattr(scaler, "_per_optimizer_states", True))

    def optimizers(self, scaler: Any) -> frozenset[int]:
        """The keys of its states are ids."""
        return frozenset(getattr(scaler, "_per_optimizer_states", ()))

    def settings(self, scaler: Any) -> dict[str, float]:
        """What its getters answer: numbers of the host."""
        if not self.is_enabled(scaler):
            return {}
        reported = {name: attribute(scaler, f"get_{name}") for name in SETTINGS}
        values = {name: get() for name, get in reported.items() if callable(get)}
        return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}

    def scale_of(self, scaler: Any) -> Tensor | float | None:
        """The tensor itself, as in `before`."""
        scale: Tensor | float | None = attribute(scaler, "_scale") if self.is_enabled(scaler) else None
        return scale

    def is_scaled_now(self, scaler: Any) -> bool:
        """By the stages of its optimizers, which lie on the host: what was unscaled is so until `update()`."""
        states = attribute(scaler, "_per_optimizer_states")
        if not self.is_enabled(scaler) or attribute(scaler, "_scale") is None or not isinstance(states, dict):
            return False
        return all(getattr(each.get("stage"), "name", "") == "READY" for each in states.values())

    def before(self, scaler: Any, arguments: tuple[Any, ...]) -> Values:
        """`get_scale()` would wait for the device: the tensors themselves are taken. `update` changes them in place."""
        if not self.is_enabled(scaler) or not self.is_due(scaler):
            return {}
        values: Values = {}
        scale = getattr(scaler, "_scale", None)
        if scale is not None:
            values["loss_scale"] = scale
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        flags = [value for state in states for value in state.get("found_inf_per_device", {}).values()]
        if flags:
            values["found_inf"] = functools.reduce(either, flags).clamp(max=1.0)  # a sum over ranks may be more
        return values


def either(first: Tensor | float, second: Tensor | float) -> Tensor | float:
    """The larger of two values, on a device where one of them is on one: a copy from there would make the host wait."""
    if not isinstance(first, Tensor):
        first, second = second, first
    if not isinstance(first, Tensor):
        return max(first, float(second))
    if not isinstance(second, Tensor):
        return first.clamp(min=second)
    if first.is_cpu:
        first, second = second, first
    return torch.maximum(first.reshape(()), second.to(first.device, non_blocking=True).reshape(()))
