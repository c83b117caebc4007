"""The figures of the pages, drawn by the Plotly.js that is in the file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from rangewatch.client import Run
from rangewatch.client.figures import decoded, of_answer
from rangewatch.commands.html_report.markup import paragraph

FIGURES = {
    "loss": "Loss", "loss_scale": "Loss scale", "timeline": "Least headroom by rank", "step_time": "Step time",
    "phases": "Phases of a step", "layers": "Headroom by layer, call order",
}  # fmt: skip
COLUMNS = 1_000
LINE_HEIGHT, ROW_HEIGHT, AROUND = 260, 12, 150
LEAST_HEIGHT, MOST_HEIGHT = 240, 640


def write(run: Run, _: dict[str, Any]) -> Iterator[str]:
    drawn = 0
    for name, title in FIGURES.items():
        answer = run.figure_data(name, columns=COLUMNS)
        if any(map(_has_points, answer["figure"]["data"])):  # not every run has a loss scale, or phases
            drawn += 1
            yield from _figure(answer, title)
    if drawn:
        yield paragraph(
            "Colours are bits of headroom, from none (dark red; in a dark page the palest) to 16 and more (blue), the "
            "same in all figures. NaN and Inf are magenta with a triangle above; blank cells are all zero, not "
            "observed or stale.",
            "muted",
        )
    else:
        yield paragraph("Nothing has been recorded that could be drawn.")


def _figure(answer: dict[str, Any], title: str) -> Iterator[str]:
    found = of_answer(answer, "")
    rows = len(answer["meta"].get("rows") or ())
    height = max(LEAST_HEIGHT, min(MOST_HEIGHT, rows * ROW_HEIGHT + AROUND)) if rows else LINE_HEIGHT
    found.update_layout(title=None, height=height, margin={"t": 40, "b": 40, "l": 8 if rows else 64, "r": 16})
    found.update_xaxes(title="step")
    found.update_yaxes(automargin=True)
    note = answer["meta"].get("note") or ""
    drawn = found.to_json().replace("<", "\\u003c")  # no name in it ends the script
    yield f"<h3>{escape(title)}</h3>\n"
    yield paragraph(note, "muted") if note else ""
    yield f'<section class="figure" role="figure" aria-label="{escape(title)}" style="min-height: {height}px">'
    yield f'<script type="application/json">{drawn}</script></section>\n'


def _has_points(trace: dict[str, Any]) -> bool:
    values = trace.get("z" if trace["type"] == "heatmap" else "y")
    return values is not None and bool(np.isfinite(decoded(values)).any())
