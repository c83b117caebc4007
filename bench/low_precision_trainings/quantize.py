"""Layers whose operands are rounded to a smaller format and back, as a kernel in that format would have them.

The codes are those of `rangewatch.statistics.whatif`, which tests hold against torch's and torchao's bit by bit. The
products themselves are in float32, as accumulators are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rangewatch.statistics import formats, whatif

Quantizer = Callable[[Tensor], Tensor]


def rounded(values: Tensor, name: str, previous_amax: float | None = None) -> Tensor:
    """`values` as the format of that name holds them. `name` with "/unfloored": a row's scale is its amax over the
    largest number and nothing else, so that a row of zeros is divided by zero (torchao#3356)."""
    name, _, variant = name.partition("/")
    each = formats.BY_NAME[name]
    rows = values.detach().reshape(-1, values.shape[-1]).float()
    amax = float(rows.abs().max())
    blocked, factors = whatif.scaled(rows, each, amax, amax if previous_amax is None else previous_amax)
    if variant == "unfloored":
        factors = each.element.largest / blocked.abs().amax(-1, keepdim=True)
    stored, _ = whatif.cast(blocked * factors, each.element)
    return (stored / factors).reshape(len(rows), -1)[:, : values.shape[-1]].reshape(values.shape)


class Operand:
    """Rounds one operand of one layer; "" leaves it. With delayed scaling it holds the amax of the step before."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_on = True
        self.previous_amax: float | None = None

    def __call__(self, values: Tensor) -> Tensor:
        if not self.name or not self.is_on:
            return values.detach()
        result = rounded(values, self.name, self.previous_amax)
        if self.name.endswith("_delayed"):
            self.previous_amax = float(values.detach().abs().max())
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, layer: Linear) -> Tensor:
        stored, of_weight = layer.of_input(values), layer.of_weight(weight)
        ctx.save_for_backward(stored, of_weight)
        ctx.layer = layer
        return stored @ of_weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        stored, of_weight = ctx.saved_tensors
        gradient = ctx.layer.of_gradient(gradients[0])
        of_inputs = gradient @ of_weight
        flat = gradient.reshape(-1, gradient.shape[-1]).T @ stored.reshape(-1, stored.shape[-1])
        return of_inputs, flat, None


class Linear(nn.Linear):
    """A linear layer without bias whose three operands have a format each: input, weight, gradient of the output."""

    def __init__(self, inputs: int, outputs: int, recipe: Recipe) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.of_input, self.of_weight, self.of_gradient = map(Operand, (recipe.input, recipe.weight, recipe.gradient))

    def forward(self, input: Tensor) -> Tensor:
        if not any(each.name for each in (self.of_input, self.of_weight, self.of_gradient)):
            return super().forward(input)  # under autocast too
        result: Tensor = _Product.apply(input, self.weight, self)
        return result


class LayerNorm(nn.LayerNorm):
    """A layer norm whose affine weight is rounded, straight through."""

    def __init__(self, width: int, recipe: Recipe) -> None:
        super().__init__(width, bias=False)
        self.of_norm = Operand(recipe.norm)

    def forward(self, input: Tensor) -> Tensor:
        assert self.weight is not None
        weight = self.weight + (self.of_norm(self.weight) - self.weight).detach()
        return nn.functional.layer_norm(input, self.normalized_shape, weight, None, self.eps)


class Recipe:
    """Formats by operand, "" for none; `norm` is of affine weights of layer norms."""

    def __init__(self, forward: str = "", gradient: str = "", norm: str = "", *, weight: str | None = None) -> None:
        self.input, self.gradient, self.norm = forward, gradient, norm
        self.weight = forward.partition("/")[0] if weight is None else weight


def formats_of(model: nn.Module) -> dict[str, str]:
    """What is rounded, as `attach(formats=...)` wants it said."""
    said: dict[str, str] = {}
    for fqn, module in model.named_modules():
        if isinstance(module, Linear):
            of = {"input": module.of_input, "grad_output": module.of_gradient, "weight": module.of_weight}
        else:
            of = {"weight": module.of_norm} if isinstance(module, LayerNorm) else {}
        for kind, operand in of.items():
            name = operand.name.partition("/")[0]
            if name:
                said[f"{kind}:{fqn}.weight" if kind == "weight" else f"{kind}:{fqn}"] = name
    return said


def operands_of(model: nn.Module) -> list[Operand]:
    """All of a model."""
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, Operand)]
