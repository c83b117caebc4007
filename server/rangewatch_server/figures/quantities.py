"""What a heatmap of tensors can show: `statistics.DERIVED`, and what is made of more than one cell of one tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import DERIVED, HEADROOM, Derived, scales
from rangewatch.wire.events import ScaledOperands
from rangewatch.wire.records import SCALED, TensorEntry
from rangewatch_server.core.errors import ApiError
from rangewatch_server.figures.base import Grid
from rangewatch_server.figures.heatmaps import change, heatmap
from rangewatch_server.figures.heatmaps.change import CHANGE
from rangewatch_server.figures.heatmaps.heatmap import STATISTICS, Cells
from rangewatch_server.numerics.headroom import State
from rangewatch_server.query.scales import is_stale, margins_of
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

FAR_BITS = 16.0
"""Where no tensor has had less headroom, headroom says nothing: its scale ends there."""

GRADIENT_NORM = Derived(
    name="gradient_norm", title="Gradient norm", help="The norm of each parameter's gradient", unit="magnitude",
    source="the root of the mean square of the gradient, times the root of how many elements it has",
    scale="log2", worst="most", worst_title="greatest gradient norm", inputs=("full_numel", "sum_sq", "numel"),
    is_share=True, formula=lambda columns, limit: _norm(columns),
)  # fmt: skip
UPDATE_RATIO = Derived(
    name="update_ratio", title="Update over weight",
    help="How large an optimizer's step is beside the weight it changes: about 1 in 1,000 is usual", unit="fraction",
    source="the root mean square of the update over that of the weight", scale="ratio", worst="most",
    worst_title="greatest update over weight", inputs=("full_numel", "sum_sq"), is_share=True,
    formula=lambda columns, limit: columns["sum_sq"],
)  # fmt: skip

SCALED_HEADROOM = Derived(
    name="scaled_headroom_bits", title="Scaled headroom", aka="scale too small, stale",
    help="Bits between the largest magnitude of an operand in low precision and what its scale has room for",
    unit="bits", source="`log2(1 / scaled_peak)`; 0 the scale fits, below 0 the largest saturate, each bit above is "
    "range that is not used", scale="room", worst="least", worst_title="least scaled headroom",
    inputs=(scales.PEAK, scales.AGE), formula=lambda columns, limit: -np.log2(columns[scales.PEAK]),
)  # fmt: skip

_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    GRADIENT_NORM.name: (("grad", "reduced_grad"),),
    UPDATE_RATIO.name: (("update",), ("weight",)),
    SCALED_HEADROOM.name: (SCALED,),
}
"""Kinds of tensors, one of each group, that a quantity is made of; rows are those of the first group."""

ALL = (*DERIVED, CHANGE, GRADIENT_NORM, UPDATE_RATIO, SCALED_HEADROOM)
_BY_NAME = {each.name: each for each in ALL}


def _norm(columns: Any) -> Any:
    """Of one reading: steps and ranks that were merged add to both counts."""
    elements = columns["numel"] / np.maximum(columns["call_count"], 1)
    return np.sqrt(columns["sum_sq"] / columns["full_numel"] * elements)


def _with_scale_states(run: RunReader) -> Derived:
    """`SCALED_HEADROOM` with its states, which follow from the margins of the run's recipes."""
    margins = run.made_of_newest(ScaledOperands.KIND, margins_of)
    entries = run.names().tensors.entries

    def mark(columns: Any, rows: Array) -> Array:
        peak, age = columns[scales.PEAK], columns[scales.AGE]
        places = ((each.fqn, each.kind, each.index) for each in (entries[row] for row in rows.tolist()))
        margin = np.array([margins.get(place, np.nan) for place in places])[:, None]
        stale = np.where(is_stale(peak, age, margin), State.SCALE_STALE, 0)
        return np.where(peak >= scales.TOO_SMALL, State.SCALE_TOO_SMALL, stale)

    return msgspec.structs.replace(SCALED_HEADROOM, mark=mark)


def named(name: str, run: RunReader | None = None) -> Derived:
    """The quantity of that name; of "" what `run` is best shown by, or headroom. Raises `ApiError`: 422."""
    if not name:
        return HEADROOM if run is None else default(run)
    if name not in _BY_NAME:
        raise ApiError(422, "bad_parameter", f"statistic {name[:40]!r} is not one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def default(run: RunReader) -> Derived:
    """Headroom; of a run where no tensor ever had less than `FAR_BITS` of it, how its magnitudes change."""
    least = [row.least_bits for rank in run.ranks.values() for row, _ in rank.visible() if row.least_bits is not None]
    return CHANGE if least and min(least) > FAR_BITS else HEADROOM


def choices(recorded: Collection[str], kinds: Collection[str]) -> list[Derived]:
    """What can be shown of a run that records these statistics (all of one that has not said) of these kinds."""
    return [
        each for each in ALL
        if (not recorded or set(recorded).issuperset(each.inputs))
        and all(set(group).intersection(kinds) for group in _NEEDS.get(each.name, ()))
    ]  # fmt: skip


def rows_of(tensors: Tensors, order: Array, quantity: Derived) -> Array:
    """Those of the tensors that the quantity is known of."""
    needs = _NEEDS.get(quantity.name)
    if needs is None:
        return order
    return order[np.array([tensors.entries[each].kind in needs[0] for each in order.tolist()], bool)]


def read(run: RunReader, ranks: Sequence[int], cut: Grid, order: Array, quantity: Derived) -> Cells:
    """(tensors of `order`, columns of the grid): the worst of the ranks and of each column's steps."""
    if quantity is CHANGE and len(order) and cut.width:
        return change.read(run, ranks, cut, order)
    if quantity is UPDATE_RATIO:
        return _ratio(run, ranks, cut, order)
    if quantity is SCALED_HEADROOM:
        quantity = _with_scale_states(run)
    return heatmap.read(run, ranks, cut, order, quantity)


def _ratio(run: RunReader, ranks: Sequence[int], cut: Grid, order: Array) -> Cells:
    """Of updates, each over the weight of the same name."""
    entries = run.names().tensors.entries
    weights = {_place(entry): at for at, entry in enumerate(entries) if entry.kind == "weight"}
    beside = np.array([weights.get(_place(entries[each]), -1) for each in order.tolist()], np.int64)
    rms, there = STATISTICS["rms"], beside >= 0
    update = heatmap.read(run, ranks, cut, order, rms)
    ratio = np.full(update.bits.shape, np.nan, np.float32)
    if there.any():
        weight, _ = heatmap.held(heatmap.read(run, ranks, cut, np.unique(beside[there]), rms), cut.per)
        of_weight = weight.bits[np.searchsorted(np.unique(beside[there]), beside[there])]
        ratio[there] = np.where(np.isfinite(of_weight), update.bits[there] - of_weight, np.nan)
    return Cells(ratio, np.where(update.state == State.SATURATED, np.uint8(State.VALUE), update.state))


def _place(entry: TensorEntry) -> tuple[str, int]:
    return entry.fqn, entry.index


def note(quantity: Derived) -> str:
    """What is to be said of a heatmap of it, beside what its columns are."""
    if quantity is not CHANGE:
        return ""
    return f"log2 of the largest magnitude against its median over the {change.BEFORE} columns before"
