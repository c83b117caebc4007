"""What is planted in a training: in its modules, its initial weights, its optimizer or its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

PERMUTED = ("swap", "transpose", "units")
"""Rows of a weight, a square block of it, and two hidden units with all their weights."""


class Plant:
    """`how` "none" plants nothing; the same modules are there either way, so that nothing else differs."""

    def __init__(self, how: str, factor: float, place: str, first: int) -> None:
        self.how, self.factor, self.place, self.first = how, factor, place, first
        self._now = torch.ones(())
        """What outputs or gradients are multiplied by at this step: a tensor, which compiled code reads anew."""
        self._module: Any = None
        self._after: Any = None

    def before_layout(self, model: nn.Module) -> None:
        """In the whole model: weights and constants."""
        module = model.get_submodule(self.place) if self.how in ("init", "eps") else None
        if self.how == "init":
            assert isinstance(module, nn.Linear)
            with torch.no_grad():
                module.weight.mul_(self.factor)
        elif self.how == "eps":
            assert isinstance(module, nn.LayerNorm)
            module.eps = self.factor

    def hook(self, model: nn.Module) -> None:
        """In a rank's part, which may lack the module."""
        module = dict(model.named_modules()).get(self.place)
        self._module, block = module, self.place.rpartition(".")[0]
        self._after = dict(model.named_modules()).get(f"{block}.down")
        if module is None or self.how not in ("output", "grad", "rounded"):
            return
        if self.how == "rounded":
            module.register_forward_hook(lambda _, __, output: _rounded(output) if self._now != 1 else output)
        elif self.how == "output":
            module.register_forward_hook(lambda _, __, output: output * self._now.to(output.dtype))
        else:
            module.register_forward_hook(lambda _, __, output: _Scaled.apply(output, self._now))

    def groups(self, model: nn.Module, rate: float) -> list[dict[str, Any]]:
        """Parameter groups: the place's is the last one, where the rank has it."""
        own = [each for name, each in model.named_parameters() if name.startswith(f"{self.place}.")]
        if self.how != "rate" or not own:
            return [{"params": list(model.parameters()), "lr": rate}]
        rest = [each for name, each in model.named_parameters() if not name.startswith(f"{self.place}.")]
        return [{"params": rest, "lr": rate}, {"params": own, "lr": rate}]

    def begin(self, step: int, optimizer: torch.optim.Optimizer, rate: float) -> None:
        """A step begins."""
        if step < self.first:
            return
        if step == self.first and self.how in PERMUTED:
            self._permute()
        self._now.fill_(2.0 if self.how == "rounded" else self.factor)
        if self.how == "rate" and len(optimizer.param_groups) > 1:
            optimizer.param_groups[-1]["lr"] = rate * self.factor

    @torch.no_grad()
    def _permute(self) -> None:
        """Elements of the weight change places within the first rank's part of it, on all that hold that part."""
        weight: Any = None if self._module is None else self._module.weight
        if weight is None:
            return
        if self.how == "transpose":
            if _is_first(weight):
                block = _part(weight)[:8, :8]
                block.copy_(block.T.clone())
            return
        if _is_first(weight):
            _swap(_part(weight), 0)
        if self.how == "units":  # of what takes them, too: nothing that the model computes is another number
            assert self._module is not None and self._after is not None
            bias, after = self._module.bias, self._after.weight
            if _is_first(bias):
                _swap(_part(bias), 0)
            is_cut_along = isinstance(after, DTensor) and after.placements[0].is_shard(1)
            if _is_first(after) or not is_cut_along:
                _swap(_part(after), 1)

    def data(self, step: int, values: Tensor) -> Tensor:
        """The batch: from the first step on its first row is three times as large."""
        if self.how != "data" or step < self.first:
            return values
        values = values.clone()
        values[0] *= torch.linspace(-3, 3, values.shape[-1])
        return values


def _is_first(parameter: Any) -> bool:
    return not isinstance(parameter, DTensor) or not any(parameter.device_mesh.get_coordinate() or ())


def _part(parameter: Any) -> Any:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _swap(values: Any, dim: int) -> None:
    values.copy_(values.index_select(dim, torch.tensor([1, 0, *range(2, values.shape[dim])])))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (factor,) = ctx.saved_tensors
        return gradient * factor.to(gradient.dtype), None


def _rounded(output: Tensor) -> Tensor:
    assert not isinstance(output, DTensor), "planted where nothing is sharded"
    return output.bfloat16().to(output.dtype)
