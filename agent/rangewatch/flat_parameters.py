"""Parameters that FSDP1 keeps as pieces of one flat parameter: their own names, and their pieces of its gradient.

The flat parameter's gradient is read as it accumulates: whole, on its own rank and before FSDP reduces and shards it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rangewatch.tensor_names import clean_modules, clean_parameters

_NEEDED = ("_is_padding_mask", "_numels_with_padding", "_param_infos", "_shapes")


class FlatLayout(NamedTuple):
    """What a flat parameter holds: `names` in the order of the elements, None where they are padding."""

    names: list[str | None]
    shapes: list[torch.Size]
    numels: list[int]

    def split(self, gradient: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and gradient of each parameter, from the flat gradient."""
        shapes = iter(self.shapes)
        for name, piece in zip(self.names, torch.split(gradient, self.numels), strict=True):
            if name is not None:
                yield name, piece.view(next(shapes))


def flat_parameters(model: nn.Module) -> list[tuple[nn.Parameter, FlatLayout]]:
    """Those of all FSDP1 units in `model`, wrapped with or without `use_orig_params`."""
    names = {id(module): fqn for fqn, module in clean_modules(model).items()}
    found: Iterator[Any] = (getattr(getattr(module, "_handle", None), "flat_param", None) for module in model.modules())
    return [(flat, _layout(flat, names)) for flat in found if all(hasattr(flat, name) for name in _NEEDED)]


def own_parameters(model: nn.Module, flat: list[tuple[nn.Parameter, FlatLayout]]) -> Iterator[tuple[str, nn.Parameter]]:
    """The model's other parameters, by clean name."""
    others = {id(parameter) for parameter, _ in flat}
    others |= {id(piece) for parameter, _ in flat for piece in getattr(parameter, "_params", None) or ()}
    return ((fqn, parameter) for fqn, parameter in clean_parameters(model) if id(parameter) not in others)


def _layout(flat: Any, names: dict[int, str]) -> FlatLayout:
    fqns = (_fqn(names.get(id(info.module), info.module_name), info.param_name) for info in flat._param_infos)
    pieces = [None if is_padding else next(fqns) for is_padding in flat._is_padding_mask]
    return FlatLayout(pieces, list(flat._shapes), list(flat._numels_with_padding))


def _fqn(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
