"""The tensors with the least headroom over the whole run, all ranks merged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rangewatch.client import Run
from rangewatch.html_report.markup import paragraph, table

MOST_ROWS = 40


def write(run: Run, _: dict[str, Any]) -> Iterator[str]:
    found = run.slice(["headroom_bits", "amax", "nan_count", "inf_count"], columns=1)
    if not found.array.size:
        yield paragraph("No tensor was observed.")
        return
    # A column or a few; NaN is what was not measured.
    bits = np.where(np.isnan(found.values["headroom_bits"]), np.inf, found.values["headroom_bits"]).min(axis=1)
    amax = np.where(np.isnan(found.values["amax"]), -np.inf, found.values["amax"]).max(axis=1)
    bad = np.nan_to_num(found.values["nan_count"]).sum(axis=1) + np.nan_to_num(found.values["inf_count"]).sum(axis=1)
    order = np.lexsort((bits, -(bad > 0).astype(int)))[:MOST_ROWS]
    rows = [(found.row_labels[at], _bits(bits[at]), _largest(amax[at]), f"{int(bad[at]):,}") for at in order]
    title = f"The {len(rows)} of {len(bits)} tensors with NaN or Inf, or with the least headroom"
    yield table(title, ("Tensor", "Least headroom (bits)", "Largest magnitude", "NaN and Inf"), rows)


def _bits(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not measured"


def _largest(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "none finite"
