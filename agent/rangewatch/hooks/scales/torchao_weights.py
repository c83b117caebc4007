"""Weights that torchao holds as `Float8Tensor`, `MXTensor` or `NVFP4Tensor`: stored numbers and scales, which are read
when counts are, since such weights are as a rule frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from rangewatch.hooks.scales.engine_weights import unpacked
from rangewatch.hooks.scales.operand import WEIGHT, Operand, class_of
from rangewatch.hooks.scales.reads import ScaleReads
from rangewatch.recording.observer import Observer
from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperand

_CLASSES = {"Float8Tensor", "MXTensor", "NVFP4Tensor"}
NOT_BY_ROWS = "scales: in the layout that a kernel wants, which is not read"


class WeightModule:
    """A module that holds such a weight. Called after each of its forwards."""

    def __init__(self, weights: TorchaoWeights, module: nn.Module) -> None:
        self._weights, self._module = weights, ref(module)

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """A forward is over."""
        module = self._module()
        if module is not None:
            self._weights.read(module)

    def compiled(self) -> None:
        """Nothing of it is seen there."""


class TorchaoWeights:
    """Those of one attached model."""

    def __init__(self, reads: ScaleReads, observer: Observer, fqns: WeakKeyDictionary[nn.Module, str]) -> None:
        self._reads, self._observer, self._fqns = reads, observer, fqns

    def of(self, module: nn.Module) -> WeightModule | None:
        """What reads the module; None for most."""
        return WeightModule(self, module) if _held(module) is not None else None

    def read(self, module: nn.Module) -> None:
        """Read its weight, where the step has counts."""
        if not self._reads.schedule.is_full:
            return
        weight, fqn = _held(module), self._fqns.get(module)
        if weight is None or fqn is None:
            return
        operand = Operand(fqn, WEIGHT, 0, class_of(module))
        name = type(weight).__name__
        about = ScaledOperand("", "", source="torchao", recipe=f"{name}, a held weight")
        codes = _codes(weight, name)
        if codes is None:
            self._reads.note_unknown(operand, about, NOT_BY_ROWS)
            return
        stored, scale, format = codes
        scale_format = {"MXTensor": "e8m0", "NVFP4Tensor": "e4m3"}.get(name, "float32")
        about = ScaledOperand("", "", format=format, scale_format=scale_format, source="torchao", recipe=about.recipe)
        self._reads.read_codes(operand, stored, scale, about)


def _held(module: nn.Module) -> Any:
    # By its type alone: a tensor subclass of somebody else's may raise at anything that it is asked.
    weight = module._parameters.get("weight")
    return weight if type(weight).__name__ in _CLASSES and type(weight).__module__.startswith("torchao.") else None


def _codes(weight: Any, name: str) -> tuple[Tensor, Tensor, str] | None:
    """Stored numbers, scales by rows and blocks, and the name of their format."""
    stored, scale = getattr(weight, "qdata", None), getattr(weight, "scale", None)
    if not isinstance(stored, Tensor) or not isinstance(scale, Tensor) or stored.dim() != 2 or scale.dim() > 2:
        return None
    if getattr(weight, "is_swizzled_scales", False) or not stored.is_contiguous():
        return None
    wide = scale.detach().float()
    if name == "NVFP4Tensor" and getattr(weight, "per_tensor_scale", None) is not None:
        wide = wide * weight.per_tensor_scale
    format = "E2M1" if name == "NVFP4Tensor" else _format(getattr(weight, "elem_dtype", stored.dtype))
    if format == "E2M1":
        stored = unpacked(stored)
    return (stored, wide, format) if format else None


def _format(dtype: Any) -> str:
    return scales.OF_DTYPE.get(str(dtype).removeprefix("torch."), "")
