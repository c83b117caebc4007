"""Every rank at a glance: one value a rank by a measure, the nodes they are on, and those that stand out.

One measure is one answer, of bounded reads: the newest steps or samples, never a rank's whole history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS
from rangewatch_server.collectives import summary
from rangewatch_server.figures import memory
from rangewatch_server.machines import gpus
from rangewatch_server.machines.mesh import world_size
from rangewatch_server.numerics.outliers import OUTLYING, Worst, outlying, robust_scores
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.query.reader import RunReader, last_step
from rangewatch_server.query.samples import Latest

Array = NDArray[Any]

MOST_NAMED = 8
"""Ranks that are named; all that stand out are counted."""
RECENT_STEPS = 16
"""Steps at the end of the range whose headroom and step time count."""
MOST_TIMED = 1_024
"""Ranks whose step times are read, evenly among all: each is a read of its own."""
MOST_MISSING = 4_096
HEALTHY_BITS = 16.0
"""Headroom from which on a cell is as calm as it gets, as in the heatmaps."""


class Scale(msgspec.Struct, frozen=True):
    """Values at which a cell is calm, and as hot as it gets. `is_log`: what costs time, in decades."""

    calm: float
    hot: float
    is_log: bool = False


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell can show. `read`: (ranks,) float64, NaN where nothing is known of a rank."""

    name: str
    title: str
    unit: Literal["_s", "_c", "_mhz", "_percent", "_bits", "_bytes"]
    worst: Worst
    read: Callable[[RunReader, Sequence[int], int, int], Array]
    floor: Callable[[float], float]
    """What is no difference, in the unit of the values, by their median."""
    scale: Callable[[float], Scale]
    """By the median of the values: some measures are compared with it."""
    is_of_steps: bool = False
    """Whether it is of the range's steps, and not of now."""


def rank_map(run: RunReader, name: str | None, start: int, stop: int) -> dict[str, Any]:
    """The answer of docs/api.md. Without `name` the first of `USUAL` of which anything is known."""
    ranks = sorted(run.ranks)
    for each in USUAL if name is None else (name,):
        measure = BY_NAME[each]
        values = measure.read(run, ranks, start, stop)
        if np.isfinite(values).any():
            break
    known = values[np.isfinite(values)]
    median = float(np.median(known)) if len(known) else 0.0
    scores = robust_scores(values, measure.floor(median), measure.worst)
    odd = outlying(scores, MOST_NAMED)
    others = np.delete(values, odd)
    return {
        "measure": measure.name, "title": measure.title, "unit": measure.unit, "worst": measure.worst,
        "is_of_steps": measure.is_of_steps, "start": start, "stop": stop,
        "measures": [{"name": one.name, "title": one.title} for one in MEASURES],
        "scale": msgspec.to_builtins(measure.scale(median)), "nodes": _nodes(run, ranks, values),
        "rank_count": len(ranks), "known_count": len(known),
        "outliers": [
            {"rank": ranks[at], "host": run.ranks[ranks[at]].info.host, "value": float(values[at]),
             "score": round(float(scores[at]), 1)}
            for at in odd.tolist()
        ],
        "outlier_count": int(np.count_nonzero(scores >= OUTLYING)), "others": _spread(others),
    }  # fmt: skip


def _nodes(run: RunReader, ranks: Sequence[int], values: Array) -> list[dict[str, Any]]:
    """Hosts in the order of their first rank, each with its ranks by local rank; and who has not reported."""
    nodes: dict[str, list[tuple[int, int, float | None]]] = {}
    for rank, value in zip(ranks, values.tolist(), strict=True):
        info = run.ranks[rank].info
        shown = float(f"{value:.4g}") if np.isfinite(value) else None  # 1,024 ranks in 20 kB
        nodes.setdefault(info.host, []).append((info.local_rank, rank, shown))
    named: list[dict[str, Any]] = [
        {"host": host, "local_ranks": [each[0] for each in of], "ranks": [each[1] for each in of],
         "values": [each[2] for each in of]}
        for host, of in ((host, sorted(of)) for host, of in nodes.items())
    ]  # fmt: skip
    missing = [rank for rank in range(min(world_size(run), MOST_MISSING)) if rank not in run.ranks]
    if missing:
        width = max((len(of) for of in nodes.values()), default=len(missing))
        for at in range(0, len(missing), width):
            part = missing[at : at + width]
            local = list(range(len(part)))
            named.append({"host": None, "local_ranks": local, "ranks": part, "values": [None] * len(part)})
    return named


def _spread(values: Array) -> dict[str, Any]:
    """Those that do not stand out, as one: how many are known, their median, and between what 90 % of them lie."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {"count": 0, "median": None, "p5": None, "p95": None}
    p5, median, p95 = np.percentile(known, (5, 50, 95)).tolist()
    return {"count": len(known), "median": median, "p5": p5, "p95": p95}


# How each measure is read.


def _costs(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    costs = summary.costs(run, start, stop)
    return np.array([costs.get(rank, np.nan) for rank in ranks])


def _step_times(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    """The median of each rank's newest steps in the range."""
    values = np.full(len(ranks), np.nan)
    row = run.names().series.get("step_time_s")
    if row is None:
        return values
    for place in range(0, len(ranks), -(-len(ranks) // MOST_TIMED) or 1):
        last = last_step(run.ranks[ranks[place]])
        end = stop if last is None else min(stop, last + 1)
        low = max(start, end - RECENT_STEPS)
        if last is None or low >= end:
            continue
        columns = run.slice(SERIES_PART, [ranks[place]], 0, low, end, ("count", "last"), np.array([row])).columns
        seconds = columns["last"][0][columns["count"][0] > 0]
        if np.isfinite(seconds).any():
            values[place] = np.nanmedian(np.where(np.isfinite(seconds), seconds, np.nan))
    return values


def _memory(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    """What tensors take of each rank's device, or else the rank's pages in its host's memory."""
    last = max((step for rank in ranks if (step := last_step(run.ranks[rank])) is not None), default=-1)
    series = next(iter(memory.lines_of(run).values()))
    return memory.newest_by_rank(run, ranks, series, start, min(stop, last + 1))


def _headroom(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    """The least of the newest steps in the range; 0 where a NaN or Inf was recorded."""
    values = np.full(len(ranks), np.nan)
    low = max(start, stop - RECENT_STEPS)
    if low >= stop:
        return values
    columns = run.by_rank(ranks, 0, low, stop, ("observed", "bits", "nan_count", "inf_count")).columns
    shape = (len(ranks), len(KINDS) * (stop - low))
    observed, bits = (columns[name].reshape(shape) for name in ("observed", "bits"))
    bad = (columns["nan_count"] + columns["inf_count"]).reshape(shape).sum(axis=1) > 0
    least = np.where(observed > 0, bits, np.inf).min(axis=1, initial=np.inf)
    seen = (observed > 0).any(axis=1)
    values[seen] = np.clip(least[seen], 0.0, 2 * HEALTHY_BITS)
    values[bad] = 0.0
    return values


def _of_card(read: Callable[[Latest], float]) -> Callable[[RunReader, Sequence[int], int, int], Array]:
    """A value of each rank's card as it is now; of several cards the first that is known."""

    def values(run: RunReader, ranks: Sequence[int], _: int, __: int) -> Array:
        by_rank: dict[int, float] = {}
        for each in gpus.watched(run):
            value = read(each)
            if np.isfinite(value):
                by_rank.setdefault(each.rank, value)
        return np.array([by_rank.get(rank, np.nan) for rank in ranks])

    return values


def _column(name: str) -> Callable[[Latest], float]:
    return lambda latest: latest.columns.get(name, np.nan)


def _is_slowed(latest: Latest) -> float:
    """100 while anything but the power cap holds its clocks down, else 0; NaN where the card does not say."""
    bits = latest.columns.get("throttle_reasons", np.nan)
    return 100.0 * any(int(bits) & bit for bit in gpus.SLOWING) if np.isfinite(bits) else np.nan


def _ages(run: RunReader, ranks: Sequence[int], _: int, __: int) -> Array:
    """Since each spoke; since the newest of them where the run is over, when all have long been silent."""
    seen_ns = np.array([run.ranks[rank].row.last_seen_ns for rank in ranks], np.int64)
    is_open = any(run.ranks[rank].row.state == "open" for rank in ranks)
    newest_ns = max(run.now_ns, int(seen_ns.max())) if is_open else int(seen_ns.max())
    return np.asarray(newest_ns - seen_ns) / 1e9


MEASURES = (
    Measure(
        name="cost", title="Cost to others a step", unit="_s", worst="most", read=_costs, is_of_steps=True,
        floor=lambda _: 0.2e-3, scale=lambda _: Scale(1e-4, 1.0, is_log=True),
    ),
    Measure(
        name="step_time", title="Step time", unit="_s", worst="most", read=_step_times, is_of_steps=True,
        floor=lambda median: max(0.01 * median, 1e-6), scale=lambda median: Scale(median, 1.5 * median),
    ),
    Measure(
        name="temperature", title="Temperature", unit="_c", worst="most", read=_of_card(_column("temperature_c")),
        floor=lambda _: 2.0, scale=lambda _: Scale(50.0, 95.0),
    ),
    Measure(
        name="clocks", title="SM clock", unit="_mhz", worst="least", read=_of_card(_column("sm_clock_mhz")),
        floor=lambda median: max(0.01 * median, 1.0), scale=lambda median: Scale(median, 0.5 * median),
    ),
    Measure(
        name="throttle", title="Throttled", unit="_percent", worst="most", read=_of_card(_is_slowed),
        floor=lambda _: 10.0, scale=lambda _: Scale(0.0, 100.0),
    ),
    Measure(
        name="headroom", title="Least headroom", unit="_bits", worst="least", read=_headroom, is_of_steps=True,
        floor=lambda _: 0.25, scale=lambda _: Scale(HEALTHY_BITS, 0.0),
    ),
    Measure(
        name="memory", title="Memory held", unit="_bytes", worst="most", read=_memory, is_of_steps=True,
        floor=lambda median: max(0.02 * median, float(64 << 20)), scale=lambda median: Scale(median, 1.5 * median),
    ),
    Measure(
        name="last_seen", title="Last seen", unit="_s", worst="most", read=_ages,
        floor=lambda _: 2.5, scale=lambda _: Scale(5.0, 300.0, is_log=True),
    ),
)  # fmt: skip
USUAL = ("cost", "step_time", "headroom")
"""What ranks cost one another, or else how long they take, or else how near they are to an overflow."""
BY_NAME = {measure.name: measure for measure in MEASURES}
