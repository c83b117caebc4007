"""Shelf 3: what the store holds, as names and arrays for a chart.

A figure is one entry: its route, the checks of its parameters, its unit and scale, and its row of the docs follow.
In: a `RunReader` and `Params`. Out: the answer of docs/api.md. Never: colours, or anything else of how it is drawn.
"""

from rangewatch_server.figures import comparison, experts, exponents, lines, memory, phases
from rangewatch_server.figures.base import Figure
from rangewatch_server.figures.heatmaps import layers, ranks, waits

ALL: tuple[Figure, ...] = (
    *lines.FIGURES, *ranks.FIGURES, phases.FIGURE, *layers.FIGURES, exponents.FIGURE, *experts.FIGURES,
    waits.FIGURE, memory.FIGURE, comparison.FIGURE,
)  # fmt: skip
BY_NAME = {figure.name: figure for figure in ALL}
