"""Libraries that only some notebooks have: each is loaded when it is asked for, and named when it is missing."""

from __future__ import annotations

import importlib
from typing import Any


def pandas() -> Any:
    """pandas. Raises ImportError."""
    return _library("pandas")


def polars() -> Any:
    """polars. Raises ImportError."""
    return _library("polars")


def pyarrow_ipc() -> Any:
    """What reads Arrow streams for pandas. Raises ImportError."""
    return _library("pyarrow.ipc")


def plotly_graphs() -> Any:
    """Plotly's figures. Raises ImportError."""
    return _library("plotly.graph_objects")


def plotly_inline() -> str:
    """Plotly.js, for a page that loads nothing. Raises ImportError."""
    source: str = _library("plotly.offline").get_plotlyjs()
    return source


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ImportError(f"{name} is not installed: pip install {name.partition('.')[0]}") from None
