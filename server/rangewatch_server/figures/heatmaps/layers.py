"""Tensor by step: a statistic of every tensor or closed module, of one rank or the worst of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from rangewatch.statistics import HEADROOM
from rangewatch_server.figures import quantities
from rangewatch_server.figures.base import Figure, FigureData, Params, grid_of
from rangewatch_server.figures.heatmaps import heatmap, places
from rangewatch_server.figures.heatmaps.change import CHANGE
from rangewatch_server.figures.heatmaps.rows import arranged, bands, flat, grouped, row, row_edges
from rangewatch_server.figures.module_tree import tree
from rangewatch_server.figures.name_filter import chosen

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

BANDS = ("*",)
"""`closed` that leaves to the server which modules are."""


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `layers` of docs/api.md."""
    tensors, statistic = run.names().tensors, quantities.named(params.statistic, run)
    order = quantities.rows_of(tensors, chosen(tensors, params.kinds, params.q), statistic)
    is_asked_for_bands = params.closed == BANDS
    if is_asked_for_bands:
        params = structs.replace(params, closed=bands(order, tensors.entries))
    columns = heatmap.columns_for(statistic, params.columns, len(order))
    cut = grid_of(run, structs.replace(params, columns=columns))
    cells = quantities.read(run, params.ranks, cut, order, statistic)
    heatmap.mark_stale(run, params.ranks, cut, cells.state)
    together, cadence = heatmap.note(run, params.ranks, cut, len(order), statistic), quantities.note(statistic)
    if statistic.is_full_set:
        cells, cadence = heatmap.held(cells, cut.per)
    units, pooled = arranged(tensors, params, order, cells, 0)
    starts = row_edges(len(units), params.rows)
    rows = [row(tensors.entries, group, params.sort == "call") for group in grouped(units, starts)]
    shown = pooled.pooled(starts, 0)
    if params.places and statistic is HEADROOM:
        members = [(params.ranks, flat(group)[0]) for group in grouped(units, starts)]
        places.add_steps(run, rows, shown, cut, members, params.places)
    data, meta = heatmap.figure(shown, rows, cut, statistic, together, cadence)
    if is_asked_for_bands and params.closed:
        meta["closed"] = list(params.closed)
    if params.tree:
        meta["modules"] = tree(tensors.entries, order, cells, statistic, params.tree, cut)
    return data, meta


def build_change(run: RunReader, params: Params) -> FigureData:
    """The figure `change` of docs/api.md."""
    return build(run, structs.replace(params, statistic=CHANGE.name))


FIGURES = (
    Figure(
        name="layers", title="Headroom by layer", build=build, data="headroom or another `statistic`",
        help="Each tensor's headroom in bits over steps, in call order; where all have more than 16, `change`.",
    ),
    Figure(
        name="change", title="Change of magnitude by layer", build=build_change,
        data="log2 of `amax` against its own median over the 64 columns before",
        help="How far each tensor's magnitude is from where it was shortly before, in bits.",
    ),
)  # fmt: skip
