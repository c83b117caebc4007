"""Keeps every tensor that Rangewatch should see, by plain hooks written apart from the agent's."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Key = tuple[str, str, int]


class KeepEverything:
    """(fqn, kind, index) -> clones of what was there, for the step since `clear`."""

    def __init__(self, model: nn.Module) -> None:
        self.kept: dict[Key, list[Tensor]] = defaultdict(list)
        self.order: list[Key] = []
        for fqn, module in model.named_modules():
            module.register_forward_hook(lambda _, __, output, fqn=fqn: self._outputs(fqn, output))
        for fqn, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda parameter, fqn=fqn: self._keep((fqn, "grad", 0), parameter.grad)
                )

    def clear(self) -> None:
        self.kept.clear()
        self.order.clear()

    def _outputs(self, fqn: str, output: Any) -> None:
        for index, tensor in enumerate(flat(output)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self._keep((fqn, "output", index), tensor)
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad, index=index: self._keep((fqn, "grad_output", index), grad))

    def _keep(self, key: Key, tensor: Tensor) -> None:
        if key not in self.order:
            self.order.append(key)
        self.kept[key].append(tensor.detach().clone())


def flat(value: Any) -> list[Any]:
    """The values in nested containers, tensors and others."""
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in flat(child)]
    if isinstance(value, (tuple, list)):
        return [leaf for child in value for leaf in flat(child)]
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in flat(getattr(value, field.name))]
    return [value]


def assert_recorded(
    recorded: dict[Key, dict[int, dict[str, float]]], step: int, kept: dict[Key, list[Tensor]], rtol: float = 0.0
) -> None:
    """Every tensor kept is recorded at `step` with numpy's statistics (within `rtol`), and no other is."""
    assert {key for key, steps in recorded.items() if step in steps} == set(kept)
    for key, tensors in kept.items():
        cell = recorded[key][step]
        for name, value in statistics_of(tensors).items():
            if name not in FULL or cell["full_numel"]:
                tolerance = max(rtol, 1e-12) if name == "sum_sq" else rtol
                assert cell[name] == value or np.isclose(cell[name], value, rtol=tolerance, atol=0.0), (key, name)


FULL = ("amin", "zero_count", "subnormal_count", "sum_sq")


def statistics_of(tensors: list[Tensor]) -> dict[str, float]:
    values = np.concatenate([tensor.double().numpy().ravel() for tensor in tensors])
    magnitude = np.abs(values[np.isfinite(values)])
    nonzero = magnitude[magnitude > 0]
    return {
        "call_count": len(tensors),
        "numel": values.size,
        "amax": magnitude.max(initial=0.0),
        "nan_count": np.isnan(values).sum(),
        "inf_count": np.isinf(values).sum(),
        "amin": nonzero.min(initial=np.inf),
        "zero_count": (magnitude == 0).sum(),
        "subnormal_count": (nonzero < torch.finfo(tensors[0].dtype).smallest_normal).sum(),
        "sum_sq": (magnitude**2).sum(),
    }
