"""An operand of a matrix product, by its name."""

from __future__ import annotations

import msgspec
from torch import nn

INPUT, WEIGHT, GRAD_OUTPUT = "scaled_input", "scaled_weight", "scaled_grad_output"


class Operand(msgspec.Struct, frozen=True):
    """Which operand of which module a tensor is."""

    fqn: str
    kind: str
    index: int
    module: str
    """The module's class."""


def class_of(module: nn.Module) -> str:
    """The name of a module's class, as rows have it."""
    return type(module).__name__
