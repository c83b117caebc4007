"""what a heatmap can show of a tensor. Each has a scale that is never stretched to the data, and a worst end.

Cells hold a score: the value, or its negative where the largest is the worst, so that the least of any cells is the
worst of them whatever is shown, and NaN where it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.core.errors import ApiError
from rangewatch_server.numerics.headroom import State, headroom_bits, limits_of, states
from rangewatch_server.numerics.pyramid import Block
from rangewatch_server.store.names import Tensors

Array = NDArray[Any]

CELL = ("call_count", "amax", "nan_count", "inf_count")


class Shown(msgspec.Struct, frozen=True):
    """One of them. `inputs`: statistics it is made of besides `CELL`; `is_share`: of several steps or ranks read
    together it is that of all their elements, and no longer the worst of them."""

    name: str
    title: str
    scale: Literal["bits", "log2", "fraction", "count"]
    worst: Literal["least", "most"]
    inputs: tuple[str, ...] = ()
    is_share: bool = False

    @property
    def sign(self) -> int:
        """Of a value in its score."""
        return 1 if self.worst == "least" else -1

    @property
    def is_full_set(self) -> bool:
        """Whether it is measured only at the steps that have the full set."""
        return bool(self.inputs)

    @property
    def ends(self) -> tuple[float, float]:
        """Of the scale: float16's whole range, of a magnitude."""
        return {"bits": (0.0, 16.0), "log2": (-24.0, 16.0), "fraction": (0.0, 1.0), "count": (0.0, 24.0)}[self.scale]

    def meta(self) -> dict[str, Any]:
        """For the page."""
        low, high = self.ends
        return {
            "name": self.name,
            "title": self.title,
            "scale": self.scale,
            "worst": self.worst,
            "low": low,
            "high": high,
        }


HEADROOM = Shown("headroom_bits", "Headroom", "bits", "least")
ALL = (
    HEADROOM,
    Shown("floor_room_bits", "Floor room", "bits", "least", ("full_numel", "amin")),
    Shown("amax", "Largest magnitude", "log2", "most"),
    Shown("amin", "Smallest magnitude", "log2", "least", ("full_numel", "amin")),
    Shown("rms", "Root mean square", "log2", "most", ("full_numel", "sum_sq"), is_share=True),
    Shown("zero_fraction", "Zero fraction", "fraction", "most", ("full_numel", "zero_count"), is_share=True),
    Shown(
        "subnormal_fraction", "Subnormal fraction", "fraction", "most", ("full_numel", "subnormal_count"), is_share=True
    ),
    Shown("nonfinite_count", "Non-finite elements", "count", "most"),
)  # fmt: skip
BY_NAME = {each.name: each for each in ALL}


def named(name: str) -> Shown:
    """Raises `ApiError`: 422, and what there is."""
    if name not in BY_NAME:
        raise ApiError(422, "bad_parameter", f"statistic {name[:40]!r} is not one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def score_and_state(shown: Shown, block: Block, tensors: Tensors) -> tuple[Array, Array]:
    """(t, n) float32 scores and uint8 states of a block of ranges."""
    bits = headroom_bits(block.columns["amax"], tensors.log2_max[block.rows])
    state = states(block.columns, bits)
    if shown is HEADROOM:
        return bits, state
    state[state == State.SATURATED] = State.VALUE
    if shown.scale in ("fraction", "count"):  # 0 and 1 lie on the scale
        state[state == State.ZERO] = State.VALUE
    dtypes = [tensors.entries[row].dtype for row in block.rows] if shown.name == "floor_room_bits" else ()
    score = shown.sign * _value(shown, block.columns, dtypes)
    return score.astype(np.float32), state


def _value(shown: Shown, columns: Mapping[str, Array], dtypes: Sequence[str]) -> Array:
    """(t, n) float64, on the scale: log2 of a magnitude, log2(1 + n) of a count; NaN where it was not measured."""
    found = {name: columns[name].astype(np.float64) for name in (*CELL, *shown.inputs) if name in columns}
    shape = found["call_count"].shape
    if not all(name in found for name in shown.inputs):  # the run has no full set
        return np.full(shape, np.nan)
    bad = found["nan_count"] + found["inf_count"]
    with np.errstate(divide="ignore", invalid="ignore"):
        if shown.name == "nonfinite_count":
            value = np.log2(1 + bad)
        elif shown.name == "amax":
            value = np.log2(found["amax"])
        elif shown.name == "amin":
            value = np.log2(found["amin"])
        elif shown.name == "floor_room_bits":
            smallest = np.array([limits_of(dtype).smallest_normal for dtype in dtypes])
            value = np.log2(found["amin"]) - np.log2(smallest)[:, None]
        elif shown.name == "rms":
            value = np.log2(found["sum_sq"] / np.maximum(found["full_numel"] - bad, 1)) / 2
        else:
            value = found[shown.inputs[1]] / found["full_numel"]
    is_measured = np.isfinite(value)
    if shown.is_full_set:
        is_measured &= found["full_numel"] > 0
    return np.where(is_measured, value, np.nan)
