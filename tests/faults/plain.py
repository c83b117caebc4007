"""What is seen without Rangewatch: the first output, loss or gradient that holds NaN or Inf."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LATER = "the loss, or a gradient"


class FirstBad:
    """`seen` is (step, module's name), with the name LATER where it was in no output; None while all is finite.

    `step` is set by the training.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.step = 0
        self.seen: tuple[int, str] | None = None
        self._hooks = [module.register_forward_hook(self._look(name)) for name, module in model.named_modules()]

    def _look(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.seen is None and isinstance(output, torch.Tensor) and not bool(output.isfinite().all()):
                self.seen = (self.step, name)

        return hook

    def after_backward(self, loss: torch.Tensor) -> None:
        """Look at the loss, and at what the parameters' gradients are."""
        values = [loss, *(each.grad for each in self._model.parameters() if each.grad is not None)]
        if self.seen is None and not all(bool(each.isfinite().all()) for each in values):
            self.seen = (self.step, LATER)

    def remove(self) -> None:
        for each in self._hooks:
            each.remove()
