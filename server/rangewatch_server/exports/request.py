"""What a slice is asked by: axes, ranks, tensors, steps and statistics, checked against the run. No reads of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs
from numpy.typing import NDArray

from rangewatch.statistics.exponents import exponent_of
from rangewatch.wire.records import KINDS
from rangewatch_server.core.errors import ApiError
from rangewatch_server.exports.rectangles import DERIVED, STEP_READ_COLUMNS, Rectangle
from rangewatch_server.figures.base import Grid, grid
from rangewatch_server.figures.layers import chosen
from rangewatch_server.numerics.pyramid import AMAX_STEP, NONFINITE_STEP, RANGES
from rangewatch_server.query.reader import RunReader

Array = NDArray[Any]

STEP, RANK, TENSOR = "step", "rank", "tensor"
AXES = {frozenset(axes) for axes in ((STEP, TENSOR), (STEP, RANK), (RANK, TENSOR))}
ALL_AXES = frozenset((STEP, RANK, TENSOR))
MAX_STATISTICS = 400  # names in one request: a catalogue with histograms has 288
MAX_VALUES = 250_000  # of one JSON answer: 5 MB of text and 20 MiB while it is made


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters as they came."""

    axes: str
    statistics: Sequence[str]
    rank: str
    tensor: str
    kinds: Sequence[str]
    q: str
    step: int | None
    start: int | None
    stop: int | None
    columns: int | None
    is_export: bool


def resolve(run: RunReader, asked: Asked) -> Rectangle:
    """The rectangle that is asked for. Raises `ApiError`, in one line that says what to give instead."""
    axes = _axes(asked)
    ranks = _ranks(run, asked.rank)
    cut = _cut(run, asked, axes, ranks)
    rectangle = Rectangle(
        axes=axes,
        groups=tuple((rank,) for rank in ranks) if RANK in axes else (ranks,) if ranks else (),
        order=_order(run, asked),
        cut=cut,
        statistics=_statistics(run, asked.statistics, merged=(cut.per if STEP in axes else cut.stop - cut.start) > 1),
    )
    if not asked.is_export:
        _check_size(rectangle)
    return rectangle


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", text)


def _axes(asked: Asked) -> frozenset[str]:
    axes = frozenset(asked.axes.split(","))
    if axes == ALL_AXES and not asked.is_export:
        raise _bad("axes: JSON has two; step,rank,tensor is for format=csv, parquet or arrow")
    if axes not in AXES and axes != ALL_AXES:
        raise _bad("axes must be step,tensor or step,rank or rank,tensor")
    if STEP in axes and asked.step is not None:
        raise _bad("step fixes one step: with step among the axes give start and stop instead")
    if STEP not in axes and asked.columns is not None:
        raise _bad("columns merges steps: give it only with step among the axes")
    if asked.step is not None and (asked.start is not None or asked.stop is not None):
        raise _bad("give either step, or start and stop")
    return axes


def _numbers(name: str, text: str) -> tuple[int, int]:
    """`5` or `2-7` as the first and the last number."""
    first, _, last = text.partition("-")
    last = last if "-" in text else first
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (first, last)):
        raise _bad(f"{name} must be a number, first-last or all")
    return int(first), int(last)


def _ranks(run: RunReader, text: str) -> tuple[int, ...]:
    if text == "all":
        return tuple(sorted(run.ranks))
    first, last = _numbers(RANK, text)
    for rank in (first, last):
        if rank not in run.ranks:
            raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
    return tuple(rank for rank in sorted(run.ranks) if first <= rank <= last)


def _order(run: RunReader, asked: Asked) -> Array:
    """Ordinals of the tensors, in call order."""
    unknown = [kind for kind in asked.kinds if kind not in KINDS]
    if unknown:
        raise _bad(f"kind {unknown[0][:40]!r} is not one of {', '.join(KINDS)}")
    tensors = run.names().tensors
    order = chosen(tensors, asked.kinds, asked.q)
    if asked.tensor == "all":
        return order
    ends = _numbers(TENSOR, asked.tensor)
    for tensor in ends:
        if tensor >= len(tensors.entries):
            raise ApiError(404, "unknown_tensor", f"run {run.id} has no tensor {tensor}")
    first, last = (tensors.position[tensor] for tensor in ends)
    places = tensors.position[order]
    return order[(places >= first) & (places <= last)]


def _cut(run: RunReader, asked: Asked, axes: frozenset[str], ranks: tuple[int, ...]) -> Grid:
    first, last = run.first_step or 0, -1 if run.last_step is None else run.last_step
    low = first if asked.start is None else max(asked.start, first)
    high = max(low, last + 1 if asked.stop is None else min(asked.stop, last + 1))
    if asked.step is not None:
        low, high = asked.step, asked.step + 1
    thinned = run.thinned(ranks, low, high)
    if low == high or (STEP in axes and asked.columns is None):
        found = Grid(low, high, 1, 0)  # what is not kept any more is not observed, and the answer says from where
    else:
        # Whole rows of agents that merge steps, whole columns of what retention left: their values are of all of them.
        merged = run.steps_a_row(ranks, low, high)
        found = grid(low, high, asked.columns or STEP_READ_COLUMNS, max(merged, thinned.per if thinned else 1))
    return found if thinned is None else structs.replace(found, thin_step=thinned.step, thin_per=thinned.per)


def _statistics(run: RunReader, names: Sequence[str], merged: bool) -> tuple[str, ...]:
    known = [name for name in run.names().fill[RANGES] if name not in (AMAX_STEP, NONFINITE_STEP)]
    places = (AMAX_STEP, NONFINITE_STEP) if merged else ()
    if len(names) > MAX_STATISTICS:
        raise _bad(f"statistic is given {len(names)} times; at most {MAX_STATISTICS} in one request")
    found: list[str] = []
    for name in names:
        if name == "*":
            found += [each for each in known if exponent_of(each) is None]
        elif name in known or name in DERIVED or name in (AMAX_STEP, NONFINITE_STEP):
            found.append(name)
        else:
            listed = [each for each in known if exponent_of(each) is None]
            raise _bad(f"statistic {name[:40]!r} is not one of *, {', '.join([*listed, *DERIVED])}")
    return tuple(dict.fromkeys([*found, *(places if "amax" in found else ())]))


def _check_size(rectangle: Rectangle) -> None:
    rows, columns = rectangle.shape
    values = rows * columns * len(rectangle.statistics)
    if values > MAX_VALUES:
        merge = "columns= to merge steps, " if STEP in rectangle.axes else ""
        raise ApiError(
            413, "too_large",
            f"that is {rows} x {columns} cells of {len(rectangle.statistics)} statistics, and JSON has at most "
            f"{MAX_VALUES} values: give {merge}fewer steps, ranks or tensors, or format=arrow, parquet or csv",
        )  # fmt: skip
