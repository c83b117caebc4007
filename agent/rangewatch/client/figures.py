"""A page's figure as Plotly's: the same data, with the scales, names, limits and marks that the pages draw."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.client import colours
from rangewatch.client.optional_imports import plotly_graphs

MOST_NAMES = 60
"""Names along one axis: more would lie on each other."""


def of_answer(answer: dict[str, Any], title: str) -> Any:
    """A `plotly.graph_objects.Figure` from the JSON of GET /api/v1/runs/{id}/figures/{name}. Raises ImportError."""
    found = plotly_graphs().Figure(answer["figure"])
    meta = answer["meta"]
    for trace, served in zip(found.data, answer["figure"]["data"], strict=True):
        if trace.name:
            trace.name = _as_text(trace.name)
        if trace.type == "heatmap":
            _coloured(trace, served, meta)
        elif trace.stackgroup and trace.name in colours.PHASES:
            trace.fillcolor = colours.PHASES[trace.name]
    _with_names(found, answer["figure"]["data"], meta)
    if meta.get("states") and answer["figure"]["data"]:
        _with_states(found, answer["figure"]["data"][0], meta)
    _with_ticks(found, answer["figure"]["data"], meta)
    if found.layout.yaxis.type == "log" and meta.get("limits"):
        _with_limits(found, meta["limits"])
    lines = [trace for trace in found.data if trace.type == "scatter" and trace.showlegend is None]
    found.update_layout(
        title=_as_text(title), template="plotly_white", colorway=colours.LINES, showlegend=len(lines) > 1,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
    )  # fmt: skip
    return found


def _as_text(name: str) -> str:
    """Plotly reads tags and entities in all it draws; names must arrive as themselves."""
    return escape(name, quote=False)


def _coloured(trace: Any, served: dict[str, Any], meta: dict[str, Any]) -> None:
    """`trace.meta` names the scale, for who draws it in another theme."""
    statistic = meta.get("statistic")
    is_bits = trace.name == "headroom" if statistic is None else statistic["scale"] == "bits"
    trace.colorscale = colours.headroom() if is_bits else colours.own(served.get("colorscale"))
    if is_bits:
        trace.zmin, trace.zmax = 0.0, colours.HEADROOM_BITS[-1]
    trace.meta = {"scale": "headroom" if is_bits else "own" if served.get("colorscale") else "cost"}
    trace.showscale = True
    if not trace.colorbar.title.text:
        trace.colorbar.title.text = _as_text(colours.unit(trace.name or "", statistic))


def _with_names(found: Any, traces: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """Rows and columns by name, as many as can be read."""
    if meta.get("rows"):
        _named(found.layout.yaxis, meta["rows"], 0, 1)
    if meta.get("tensors") and traces:
        _named(found.layout.xaxis, meta["tensors"], traces[0]["x0"], traces[0]["dx"])


def _named(axis: Any, rows: list[dict[str, Any]], first: float, apart: float) -> None:
    every = -(-len(rows) // MOST_NAMES)
    axis.tickvals = [first + apart * at for at in range(0, len(rows), every)]
    axis.ticktext = [_as_text(each["label"]) for each in rows[::every]]


def _with_states(found: Any, trace: dict[str, Any], meta: dict[str, Any]) -> None:
    """Every cell that holds NaN or Inf in a colour that is no part of the scale."""
    states, names = decoded(meta["states"]), meta["state_names"]
    is_bad = (states == names.index("nan")) | (states == names.index("inf"))
    if is_bad.any():
        held = np.where(is_bad, np.array(names, object)[states], None)
        found.add_heatmap(
            z=np.where(is_bad, 1.0, np.nan), x0=trace["x0"], dx=trace["dx"], text=held, name="NaN or Inf",
            hovertemplate="%{text}, step %{x}<extra></extra>", showscale=False, hoverongaps=False,
            colorscale=[[0, colours.NONFINITE], [1, colours.NONFINITE]],
        )  # fmt: skip


def _with_ticks(found: Any, traces: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """A triangle above each column or step that is not finite: a shape, for who cannot see the colour."""
    columns = meta.get("nonfinite_columns") or []
    places = [traces[0]["x0"] + each * traces[0]["dx"] for each in columns] if traces and "x0" in traces[0] else []
    places += meta.get("nonfinite_steps") or []
    if places:
        found.add_scatter(
            x=places, y=[0.98] * len(places), yaxis="y2", mode="markers", name="NaN or Inf", showlegend=False,
            marker={"symbol": "triangle-down", "size": 8, "color": colours.NONFINITE}, cliponaxis=False,
            hovertemplate="NaN or Inf, step %{x}<extra></extra>",
        )  # fmt: skip
        found.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _with_limits(found: Any, limits: dict[str, Any]) -> None:
    """The dtype's limits across a figure of magnitudes."""
    for name, colour in colours.LIMITS.items():
        at = limits.get(name)
        if at:
            text = f"{name.replace('_', ' ')} {limits['dtype']}, {at:.3g}"
            label = {"text": _as_text(text), "textposition": "start", "font": {"size": 11, "color": colour}}
            line = {"color": colour, "width": 1.2, "dash": "solid" if name == "max_finite" else "dash"}
            found.add_shape(type="line", xref="paper", x0=0, x1=1, y0=at, y1=at, line=line, label=label)


def decoded(array: dict[str, Any]) -> NDArray[Any]:
    """A typed array of an answer: `{"dtype", "bdata", "shape"}`."""
    values = np.frombuffer(base64.b64decode(array["bdata"]), np.dtype(array["dtype"]))
    shape = [int(each) for each in str(array.get("shape", values.size)).split(",")]
    return values.reshape(shape)
