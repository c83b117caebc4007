"""Shelf 3: arrays to Plotly figure dicts. To add one is one file and one line here; the API lists and serves it."""

from rangewatch_server.figures import (
    comparison,
    exponents,
    layers,
    lines,
    percentiles,
    phases,
    ranks,
    series,
    timeline,
    waits,
)
from rangewatch_server.figures.base import Figure

ALL: tuple[Figure, ...] = (
    lines.LOSS, lines.LOSS_SCALE, lines.STEP_TIME, phases.FIGURE, lines.TENSOR, exponents.FIGURE, timeline.FIGURE,
    layers.FIGURE, ranks.FIGURE,
    series.FIGURE, waits.FIGURE,
    percentiles.FIGURE, comparison.FIGURE,
)  # fmt: skip
BY_NAME = {figure.name: figure for figure in ALL}
