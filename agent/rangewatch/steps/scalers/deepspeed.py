"""DeepSpeed's optimizers, which scale the loss themselves. Read: deepspeed 0.19.8.

FP16_Optimizer and FP16_UnfusedOptimizer (`loss_scale`, `loss_scale_config`, `overflow`), the ZeRO optimizers of stage 1
to 3 (`loss_scale`, `loss_scaler`, `overflow`) and BF16_Optimizer (`overflow` alone). `engine.step()` calls their
`step()` once a step, which settles everything: `overflow` says whether it was skipped, and the scale is updated inside.
Nothing inside can be hooked instead: ZeRO steps the torch optimizer once for each of its groups.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.steps.scalers.base import Kind, Values, attribute, has_method


class EngineOptimizer(Kind):
    """An optimizer of DeepSpeed's engine: `step()` leaves in `overflow` whether it was skipped."""

    method = "step"

    def fits(self, candidate: Any) -> bool:
        """It steps and says whether that overflowed."""
        return isinstance(attribute(candidate, "overflow"), bool | Tensor) and has_method(candidate, "step")

    def is_scaling(self, scaler: Any) -> bool:
        """With bf16 and fp32 there is a scaler too, fixed at 1.0."""
        scale = _scale(scaler)
        return scale is not None and (isinstance(scale, Tensor) or scale != 1.0 or _is_dynamic(scaler))

    def before(self, scaler: Any, arguments: tuple[Any, ...]) -> Values:
        """The scale is a number of the host; `step` may change it."""
        scale = _scale(scaler)
        return {"loss_scale": scale} if scale is not None and self.is_scaling(scaler) else {}

    def after(self, scaler: Any, result: Any) -> Values:
        """Not known of a step that is taken where torch's scaler skips inside."""
        overflow = scaler.overflow
        if isinstance(overflow, Tensor):
            return {"found_inf": overflow}
        return {"found_inf": float(overflow)} if overflow or _inner_scaler(scaler) is None else {}


def _inner_scaler(scaler: Any) -> Any:
    """With torch's autocast to fp16 ZeRO has a GradScaler of torch inside."""
    return attribute(scaler, "torch_autocast_gradscaler")


def _scale(scaler: Any) -> Tensor | float | None:
    inner = _inner_scaler(scaler)
    if inner is not None:
        return attribute(inner, "_scale")
    scale = attribute(scaler, "loss_scale", attribute(scaler, "cur_scale"))
    if scale is None:
        scale = attribute(attribute(scaler, "loss_scaler"), "cur_scale")
    return scale if isinstance(scale, Tensor | float | int) else None


def _is_dynamic(scaler: Any) -> bool:
    configured = attribute(attribute(scaler, "loss_scale_config"), "dynamic_loss_scale")
    return bool(attribute(scaler, "dynamic_loss_scale") or configured)
