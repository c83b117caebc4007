"""What figures hold: their arrays, and whether Plotly takes them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def array(encoded: dict[str, Any]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(encoded["bdata"]), np.dtype(f"<{encoded['dtype']}"))
    return values.reshape([int(n) for n in encoded["shape"].split(",")]) if "shape" in encoded else values


def valid(figure: dict[str, Any]) -> dict[str, Any]:
    """The figure. Raises on a property that Plotly does not know."""
    import plotly.graph_objects as go

    go.Figure(figure)
    return figure
