"""Series as torch's GradScaler makes them, from the steps at which gradients overflow."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from rangewatch.wire.records import Event
from tests.server.rules.conftest import tensor

LAYERS = [
    tensor("a", call_index=0), tensor("b", call_index=1),
    tensor("b", "grad_output", 2), tensor("a", "grad_output", 3), tensor("a.weight", "grad", 4, "float32"),
]  # fmt: skip
OUTPUT_B, GRAD_B, GRAD_A, GRAD_WEIGHT = 1, 2, 3, 4


def scaled(
    steps: int,
    overflows: Collection[int] | Callable[[float], bool],
    *,
    first: float = 2.0**16,
    interval: int = 2_000,
    growth: float = 2.0,
) -> dict[str, np.ndarray]:
    """`loss_scale`, `found_inf` and `skipped_step` of `steps` steps. `overflows`: steps, or whether a scale does."""
    scales, skips, scale, clean = np.zeros(steps), np.zeros(steps), first, 0
    for step in range(steps):
        scales[step] = scale
        skips[step] = overflows(scale) if callable(overflows) else step in overflows
        clean = 0 if skips[step] else clean + 1
        if skips[step]:
            scale /= 2
        elif clean == interval:
            scale, clean = scale * growth, 0
    return {"loss_scale": scales, "found_inf": skips, "skipped_step": skips}


def bad(series: dict[str, np.ndarray], *rows: int) -> np.ndarray:
    """(tensors, steps) counts: one in each of `rows` at each skipped step."""
    counts = np.zeros((len(LAYERS), len(series["skipped_step"])))
    counts[list(rows)] = series["skipped_step"]
    return counts


def reported(growth_interval: float, *, step: int = 0, series: str = "loss_scale", **other: float) -> Event:
    """What the agent tells of a scaler."""
    factors = {"growth_factor": 2.0, "backoff_factor": 0.5} | other
    data = {"series": series, "class": "GradScaler", "growth_interval": growth_interval} | factors
    return Event("scaler", 1, step, "", data)
