"""What figures hold: their arrays, and whether they are as docs/api.md says."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def array(encoded: dict[str, Any]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(encoded["bdata"]), np.dtype(f"<{encoded['dtype']}"))
    return values.reshape([int(n) for n in encoded["shape"].split(",")]) if "shape" in encoded else values


def valid(figure: dict[str, Any]) -> dict[str, Any]:
    """The figure. Each of its data is a line, whose arrays are of one length, or a rectangle; and nothing besides."""
    assert set(figure) == {"data"}
    for each in figure["data"]:
        if "z" not in each:
            assert set(each) == {"name", "x", "y"}
            assert array(each["x"]).shape == array(each["y"]).shape
            continue
        assert array(each["z"]).ndim == 2
        if "x0" in each:
            assert set(each) == {"name", "x0", "dx", "z"}
        else:
            assert set(each) == {"name", "x", "y0", "dy", "z"}
            assert len(array(each["x"])) == array(each["z"]).shape[1] + 1
    return figure
