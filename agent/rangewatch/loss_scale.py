"""Watches a GradScaler: what scale the step's backward used, and whether the step was skipped.

`update` is wrapped on the scaler's class, not on the object, so the object still copies and pickles as itself; the
class gets its own `update` back when the last watch on it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_NEEDED_METHODS = ("scale", "step", "update")


def check_scaler(scaler: Any) -> None:
    """Raise `TypeError` when `scaler` is not like `torch.amp.GradScaler`."""
    missing = [name for name in _NEEDED_METHODS if not callable(getattr(scaler, name, None))]
    if missing:
        raise TypeError(f"scaler {type(scaler).__name__} has no method {missing[0]!r}: pass a torch.amp.GradScaler")


class ScalerWatch:
    """Calls `before` and `after` around each `scaler.update()` until `remove`. They must not raise."""

    def __init__(self, scaler: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.before, self.after = before, after
        self._patch = Patch.of(type(scaler))
        self._key = id(scaler)
        self._scaler = scaler
        self._patch.watches[self._key] = self

    def remove(self) -> None:
        """Stop watching. The class is as before when nobody else watches one of its objects."""
        if self._patch.watches.get(self._key) is self:
            del self._patch.watches[self._key]
        self._patch.restore_if_unused()


class Patch:
    """The wrapped `update` of one class, and who listens to it."""

    installed: dict[type, Patch] = {}  # noqa: RUF012 - one for the process, as classes are

    def __init__(self, owner: type) -> None:
        self.owner = owner
        self.watches: dict[int, ScalerWatch] = {}  # by id: a watch keeps its scaler, so none is reused
        self._own: Any = owner.__dict__.get("update")
        self._wrapper = _wrap(owner.update, self.watches)  # type: ignore[attr-defined]
        owner.update = self._wrapper  # type: ignore[attr-defined]

    @classmethod
    def of(cls, owner: type) -> Patch:
        """The patch of `owner`, installed now if it is not."""
        if owner not in cls.installed:
            cls.installed[owner] = cls(owner)
        return cls.installed[owner]

    def restore_if_unused(self) -> None:
        """Give the class its `update` back, unless somebody wrapped it again on top of us."""
        if self.watches or self.owner.__dict__.get("update") is not self._wrapper:
            return
        if self._own is None:
            del self.owner.update  # type: ignore[attr-defined]
        else:
            self.owner.update = self._own  # type: ignore[attr-defined]
        self.installed.pop(self.owner, None)


def _wrap(update: Callable[..., Any], watches: dict[int, ScalerWatch]) -> Callable[..., Any]:
    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = watches.get(id(self))
        if watch is not None:
            watch.before()
        result = update(self, *args, **kwargs)
        if watch is not None:
            watch.after()
        return result

    return watched_update


def state_before_update(scaler: Any) -> dict[str, torch.Tensor | float]:
    """`loss_scale` and `found_inf` as they are before `update`: tensors where the scaler keeps tensors.

    Nothing is read from a device here. Empty for a disabled scaler; `found_inf` is left out when nothing was unscaled.
    """
    state: dict[str, torch.Tensor | float] = {}
    scale = getattr(scaler, "_scale", None)
    if scale is not None and is_enabled(scaler):
        state["loss_scale"] = scale
    found = [
        value
        for optimizer_state in getattr(scaler, "_per_optimizer_states", {}).values()
        for value in optimizer_state.get("found_inf_per_device", {}).values()
    ]
    if found:
        state["found_inf"] = found[0] if len(found) == 1 else functools.reduce(torch.maximum, _on_one_device(found))
    return state


def _on_one_device(values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [value.to(values[0].device, non_blocking=True) for value in values]


def is_enabled(scaler: Any) -> bool:
    """Whether `scaler` scales at all; one that cannot say so does."""
    answer = getattr(scaler, "is_enabled", None)
    return bool(answer()) if callable(answer) else True
