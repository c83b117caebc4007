"""Scalers that look at no gradient: they are told whether the step overflowed.

DeepSpeed's LossScaler and DynamicLossScaler (`update_scale(overflow)`; deepspeed 0.19.8) and Megatron's grad scalers
(`update(found_inf)`; megatron-core 0.16.1). Give `attach` the optimizer that has one instead where you can: it is told
before the update, so weights read at the end of a step are those of the step before.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.steps.scalers.base import Kind, Values, attribute, has_method


class LossScaler(Kind):
    """DeepSpeed's: `cur_scale` is a number of the host, fixed at 1.0 where nothing is scaled."""

    method = "update_scale"
    scale = "cur_scale"

    def fits(self, candidate: Any) -> bool:
        """It has the method and the scale, and does not step."""
        is_reported = has_method(candidate, self.method) and not has_method(candidate, "step")
        return is_reported and isinstance(attribute(candidate, self.scale), Tensor | float | int)

    def is_scaling(self, scaler: Any) -> bool:
        """One that never changes and is 1.0 scales nothing."""
        scale = attribute(scaler, self.scale)
        return isinstance(scale, Tensor) or scale != 1.0 or bool(attribute(scaler, "dynamic"))

    def before(self, scaler: Any, arguments: tuple[Any, ...]) -> Values:
        """The one argument is `found_inf`, a bool of the host."""
        values: Values = {"loss_scale": getattr(scaler, self.scale)} if self.is_scaling(scaler) else {}
        if arguments and isinstance(arguments[0], bool | Tensor):
            values["found_inf"] = arguments[0] if isinstance(arguments[0], Tensor) else float(arguments[0])
        return values


class MegatronGradScaler(LossScaler):
    """Megatron's: `scale` is a tensor of the device, replaced by another when it changes."""

    method = "update"
    scale = "scale"
