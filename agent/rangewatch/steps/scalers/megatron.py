"""Megatron's optimizers, which scale the loss themselves. Read: megatron-core 0.16.1.

`step()` unscales, tells `grad_scaler.update(found_inf)`, returns early when the step is skipped, and answers
(success, grad_norm, num_zeros). A ChainedOptimizer has no scaler of its own: the loss is multiplied by the first one's.
"""

from __future__ import annotations

from typing import Any

from rangewatch.steps.scalers.base import Kind, Values, attribute, has_method


class MegatronOptimizer(Kind):
    """An optimizer with `get_loss_scale()`, which is never called: without a scaler it makes a tensor on the device."""

    method = "step"

    def fits(self, candidate: Any) -> bool:
        """It steps and has a loss scale."""
        return has_method(candidate, "step") and has_method(candidate, "get_loss_scale")

    def is_scaling(self, scaler: Any) -> bool:
        """With bf16 and fp32 there is no `grad_scaler`."""
        return _scale(scaler) is not None

    def before(self, scaler: Any, arguments: tuple[Any, ...]) -> Values:
        """`step` puts another tensor in the place of this one."""
        scale = _scale(scaler)
        return {} if scale is None else {"loss_scale": scale}

    def after(self, scaler: Any, result: Any) -> Values:
        """The first of its three answers is whether the step was taken."""
        success = result[0] if isinstance(result, tuple) and result else result
        return {"found_inf": float(not success)} if isinstance(success, bool) else {}


def _scale(scaler: Any) -> Any:
    scale = attribute(attribute(scaler, "grad_scaler"), "scale")
    if scale is not None:
        return scale
    chained = attribute(scaler, "chained_optimizers", ())
    return next((scale for each in chained if (scale := _scale(each)) is not None), None)
