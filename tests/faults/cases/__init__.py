"""The planted faults, by what is at fault."""

from __future__ import annotations

from tests.faults.cases import functions, gradients, loss_scales, losses, overflow, ranks, weights
from tests.faults.fault import Fault

ALL: tuple[Fault, ...] = (
    *overflow.ALL, *functions.ALL, *weights.ALL, *gradients.ALL, *loss_scales.ALL, *losses.ALL, *ranks.ALL,
)  # fmt: skip

BY_NAME = {each.name: each for each in ALL}
