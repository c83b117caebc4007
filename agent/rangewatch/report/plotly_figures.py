"""A page's figure as Plotly's: what the server sends, with the scales, names, limits and marks that the pages draw."""

from __future__ import annotations

import base64
import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.core.optional_imports import plotly_graphs
from rangewatch.report import colours

MOST_NAMES = 60
"""Names along one axis: more would lie on each other."""


MARGIN = {"l": 150, "r": 24, "t": 40, "b": 28}
POINTS = ("skipped step", "amin", "non-finite")
STAIRS = ("loss scale",)


def of_answer(answer: dict[str, Any], title: str) -> Any:
    """A `plotly.graph_objects.Figure` from the JSON of GET /api/v1/runs/{id}/figures/{name}. Raises ImportError."""
    data, meta = answer["figure"]["data"], answer["meta"]
    figure = plotly_graphs().Figure(data=[_heatmap(each, meta) if "z" in each else _line(each) for each in data])
    _with_axes(figure, data, meta)
    if meta.get("states") and data:
        _with_states(figure, data[0], meta)
    _with_ticks(figure, data, meta)
    if meta.get("limits") and data:
        _with_limits(figure, meta["limits"], is_exponent="z" in data[0])
    lines = [trace for trace in figure.data if trace.type == "scatter" and trace.showlegend is None]
    figure.update_layout(
        title=_as_text(title), template="plotly_white", colorway=colours.LINES, showlegend=len(lines) > 1,
        margin=MARGIN, legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
    )  # fmt: skip
    return figure


def _as_text(name: str) -> str:
    """Plotly reads tags and entities in all it draws; names must arrive as themselves."""
    return escape(name, quote=False)


def _line(sent: dict[str, Any]) -> dict[str, Any]:
    """A line, or points; the phases of a step are stacked, and their worst values wait in the legend."""
    name = sent["name"]
    trace = {"type": "scatter", "mode": "lines", **sent, "name": _as_text(name)}
    if name in POINTS:
        trace["mode"] = "markers"
    elif name in STAIRS:
        trace["line"] = {"shape": "hv"}
    elif name in colours.PHASES:
        trace |= {"stackgroup": "phases", "line": {"width": 0}, "fillcolor": colours.PHASES[name]}
    elif name.removesuffix(", worst") in colours.PHASES:
        trace["visible"] = "legendonly"
    return trace


def _heatmap(sent: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` of the trace names its scale, for who draws it in another theme."""
    statistic = meta.get("statistic")
    scale, stops = colours.scale_of(statistic)
    low, high = (statistic["low"], statistic["high"]) if statistic else (0, None)
    return {
        "type": "heatmap", **sent, "name": _as_text(sent["name"]), "zmin": low, "zmax": high, "colorscale": stops,
        "meta": {"scale": scale}, "hoverongaps": statistic is not None,
        "colorbar": {"title": {"text": _as_text(colours.unit(meta.get("unit", ""), statistic))}},
    }  # fmt: skip


def _with_axes(figure: Any, data: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """What is along them; rows and columns by name, as many as can be read."""
    x, y = figure.layout.xaxis, figure.layout.yaxis
    x.zeroline = y.zeroline = False
    if data and "y0" in data[0]:
        y.title.text = "exponent: 2^"
    elif data and "z" in data[0]:
        y.autorange = "reversed"
    else:
        y.type = "log" if meta.get("scale") == "log2" else "linear"
        y.rangemode = "tozero" if meta.get("unit") == "ms" else "normal"
        y.title.text = _as_text("magnitude" if meta.get("limits") else meta.get("unit") or _only_name(data))
    if meta.get("rows"):
        _named(y, meta["rows"], 0, 1)
    if meta.get("tensors") and data:
        _named(x, meta["tensors"], data[0]["x0"], data[0]["dx"])


def _only_name(data: list[dict[str, Any]]) -> str:
    return next((each["name"] for each in data if each["name"] not in POINTS), "")


def _named(axis: Any, rows: list[dict[str, Any]], first: float, apart: float) -> None:
    every = -(-len(rows) // MOST_NAMES)
    axis.tickvals = [first + apart * at for at in range(0, len(rows), every)]
    axis.ticktext = [_as_text(each["label"]) for each in rows[::every]]


def _with_states(figure: Any, sent: dict[str, Any], meta: dict[str, Any]) -> None:
    """Every cell that holds NaN or Inf in a colour that is no part of the scale."""
    states, names = decoded(meta["states"]), meta["state_names"]
    is_bad = (states == names.index("nan")) | (states == names.index("inf"))
    if is_bad.any():
        held = np.where(is_bad, np.array(names, object)[states], None)
        figure.add_heatmap(
            z=np.where(is_bad, 1.0, np.nan), x0=sent["x0"], dx=sent["dx"], text=held, name="NaN or Inf",
            hovertemplate="%{text}, step %{x}<extra></extra>", showscale=False, hoverongaps=False,
            colorscale=[[0, colours.NONFINITE], [1, colours.NONFINITE]],
        )  # fmt: skip


def _with_ticks(figure: Any, data: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """A triangle above each column or step that is not finite: a shape, for who cannot see the colour."""
    columns = meta.get("nonfinite_columns") or []
    places = [data[0]["x0"] + each * data[0]["dx"] for each in columns] if data else []
    places += meta.get("nonfinite_steps") or []
    if places:
        figure.add_scatter(
            x=places, y=[0.98] * len(places), yaxis="y2", mode="markers", name="NaN or Inf", showlegend=False,
            marker={"symbol": "triangle-down", "size": 8, "color": colours.NONFINITE}, cliponaxis=False,
            hovertemplate="NaN or Inf, step %{x}<extra></extra>",
        )  # fmt: skip
        figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _with_limits(figure: Any, limits: dict[str, Any], *, is_exponent: bool) -> None:
    """The dtype's limits across a figure of magnitudes, or of their exponents."""
    for name, colour in colours.LIMITS.items():
        at = limits.get(name)
        if at:
            text = f"{name.replace('_', ' ')} {limits['dtype']}, {at:.3g}"
            label = {"text": _as_text(text), "textposition": "start", "font": {"size": 11, "color": colour}}
            line = {"color": colour, "width": 1.2, "dash": "solid" if name == "max_finite" else "dash"}
            y = math.log2(at) if is_exponent else at
            figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=y, y1=y, line=line, label=label)


def decoded(array: dict[str, Any]) -> NDArray[Any]:
    """A typed array of an answer: `{"dtype", "bdata", "shape"}`."""
    values = np.frombuffer(base64.b64decode(array["bdata"]), np.dtype(array["dtype"]))
    shape = [int(each) for each in str(array.get("shape", values.size)).split(",")]
    return values.reshape(shape)
