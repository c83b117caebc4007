"""What is asked of each kind of loss scaler. Nothing here waits for a device, and nothing changes the scaler.

A kind keeps no scaler: each question comes with the object, so that nobody is kept alive by being watched.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

Values = dict[str, Tensor | float]
"""`loss_scale` (what this step's backward was multiplied by) and `found_inf` (above 0: the step is skipped), each a
number or a tensor of one element wherever it is. What is not known is left out."""


class Kind:
    """One kind of loss scaler. `method`: what is called once a step and settles it, taken or skipped."""

    method = "update"

    def fits(self, candidate: Any) -> bool:
        """Whether `candidate` is of this kind."""
        raise NotImplementedError

    def is_scaling(self, scaler: Any) -> bool:
        """Whether the gradients are multiplied by a loss scale, be it 1.0 at the moment."""
        raise NotImplementedError

    def is_enabled(self, scaler: Any) -> bool:
        """Whether it skips steps, so that its method says when one ends. A disabled one may well be left alone."""
        return True

    def is_due(self, scaler: Any) -> bool:
        """Whether the call of its method that is about to come settles a step."""
        return True

    def optimizers(self, scaler: Any) -> frozenset[int]:
        """`id` of each optimizer that it has served since its method was called last; empty where it cannot say."""
        return frozenset()

    def settings(self, scaler: Any) -> dict[str, float]:
        """`growth_interval` in steps, `growth_factor` and `backoff_factor`; what is not known is left out."""
        return {}

    def scale_of(self, scaler: Any) -> Tensor | float | None:
        """The scale of the next backward; None where it is not known, or nothing is scaled."""
        return self.before(scaler, ()).get("loss_scale")

    def is_scaled_now(self, scaler: Any) -> bool:
        """Whether gradients are surely still multiplied by its scale: it has unscaled none since it settled a step."""
        return False

    def before(self, scaler: Any, arguments: tuple[Any, ...]) -> Values:
        """What is known when the method is about to be called with `arguments`."""
        return {}

    def after(self, scaler: Any, result: Any) -> Values:
        """What its return adds to that."""
        return {}


def attribute(candidate: Any, name: str, default: Any = None) -> Any:
    """An attribute, or `default` where there is none, or where a property of it refuses to answer.

    The `optimizer` of Megatron's ChainedOptimizer asserts that it has one only.
    """
    try:
        return getattr(candidate, name, default)
    except (AssertionError, RuntimeError, TypeError, ValueError, LookupError):
        return default


def has_method(candidate: Any, name: str) -> bool:
    """Whether `candidate` has a method that can be watched: its own or its class's, not one of something inside."""
    if isinstance(candidate, type):
        return False
    is_there = name in getattr(candidate, "__dict__", {}) or any(name in vars(base) for base in type(candidate).__mro__)
    return is_there and callable(attribute(candidate, name))
