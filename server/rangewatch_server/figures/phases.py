"""What steps spend their time on: the phases of a step, of one rank or the mean of several; by rank, which phase
dominates, and who waits for its data loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.figures.base import Figure, FigureData, Grid, Params, grid_of, line
from rangewatch_server.figures.lines import MS, to_grid
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.store import batch_checks

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader


Array = NDArray[Any]

PHASES = batch_checks.PHASES
"""They add up to a step. The series of each is its name and `_s`."""

DATA_WAIT = PHASES.index("data_wait")

LAST_STEPS = 50
"""Steps that are judged: a stall of some of them, as at the beginning of an epoch, moves no median."""

LEAST_STEPS = 5
"""With fewer nothing is said: the first steps fill caches and compile."""

LOADER_BOUND_SHARE = 0.3
"""Of the step, spent waiting for data. A loader that keeps up costs a percent or two."""


class RankShares(msgspec.Struct, frozen=True):
    """One rank: the median share of each phase over the steps judged, None where a phase is unknown."""

    rank: int
    steps: int
    """How many were judged; with fewer than `LEAST_STEPS` all shares are None."""
    shares: dict[str, float | None]
    dominant: str | None
    is_loader_bound: bool


class PhaseShares(msgspec.Struct, frozen=True):
    """All ranks. `dominant` is the phase that takes most of the mean rank's step; None when no rank could be judged."""

    ranks: tuple[RankShares, ...]
    dominant: str | None
    loader_bound_ranks: tuple[int, ...]

    @property
    def is_loader_bound(self) -> bool:
        """Whether any rank is: in a synchronous run the others then wait for that one in their collectives."""
        return bool(self.loader_bound_ranks)


def phase_shares(
    ranks: Sequence[int], seconds: Array, last: int = LAST_STEPS, loader_bound_share: float = LOADER_BOUND_SHARE
) -> PhaseShares:
    """Judge the last `last` steps of each rank.

    `seconds`: (ranks, phases in the order of `PHASES`, steps ascending) float64, NaN where a phase is unknown or the
    step has not been told. Raises `ValueError` for another shape.
    """
    if seconds.shape[:2] != (len(ranks), len(PHASES)) or seconds.ndim != 3:
        raise ValueError(f"phase_shares: seconds {seconds.shape}, not ({len(ranks)}, {len(PHASES)}, steps)")
    shares = tuple(_of_rank(rank, each, last, loader_bound_share) for rank, each in zip(ranks, seconds, strict=True))
    mean = {phase: sum(each.shares[phase] or 0.0 for each in shares) for phase in PHASES}
    return PhaseShares(
        shares,
        max(mean, key=lambda phase: mean[phase]) if any(mean.values()) else None,
        tuple(each.rank for each in shares if each.is_loader_bound),
    )


def _of_rank(rank: int, seconds: Array, last: int, loader_bound_share: float) -> RankShares:
    totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
    judged = np.flatnonzero(totals > 0)[-last:]
    if len(judged) < LEAST_STEPS:
        return RankShares(rank, len(judged), dict.fromkeys(PHASES), None, is_loader_bound=False)
    shares = seconds[:, judged] / totals[judged]
    known = np.isfinite(shares).any(axis=1)
    medians = np.median(np.where(np.isfinite(shares), shares, 0.0), axis=1)
    return RankShares(
        rank,
        len(judged),
        {phase: float(medians[at]) if known[at] else None for at, phase in enumerate(PHASES)},
        PHASES[int(medians.argmax())],
        is_loader_bound=bool(medians[DATA_WAIT] > loader_bound_share),
    )


JUDGED_RANKS = 64
"""Ranks that are read one by one for `meta.shares`, evenly among those asked for: a few ms each."""

_WHOLE = "step_time_s"
_COLUMNS = ("count", "nonfinite_count", "max", "sum")


def build(run: RunReader, params: Params) -> FigureData:
    """The figure `phases` of docs/api.md."""
    cut = grid_of(run, params, merged=1)
    columns = _columns(run, params.ranks, cut)
    whole, x = columns[_WHOLE], cut.centres()
    # Each phase is divided by the same count, so that the areas add up to the mean step, also where not every rank
    # knows every phase. Steps of an agent that tells of no phases are left out.
    steps = columns[_series("other")]["count"]
    shown = (steps > 0) & (whole["nonfinite_count"] == 0)
    known = [phase for phase in PHASES if (columns[_series(phase)]["count"][shown] > 0).any()]
    means = {phase: columns[_series(phase)]["sum"][shown] / steps[shown] * MS for phase in known}
    data = [line(_name(phase), x[shown], means[phase]) for phase in known]
    # The longest of any rank and step in each column: these do not add up.
    data += [line(f"{_name(phase)}, worst", x[shown], columns[_series(phase)]["max"][shown] * MS) for phase in known]
    if known:
        data.append(line("slowest step", x[shown], whole["max"][shown] * MS))
    meta = cut.meta() | {
        "note": _note(cut, params), "phases": known, "unknown": [phase for phase in PHASES if phase not in known],
        "empty": None if known else "no phases were recorded of these steps", **_judged(run, params),
    }  # fmt: skip
    return data, meta


def read_seconds(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> Array:
    """(ranks, phases, steps) float64 seconds of each step in [start, stop), NaN where not known: for `phase_shares`."""
    cut = Grid(start, stop, 1, 0)
    seconds = np.full((len(ranks), len(PHASES), cut.width), np.nan)
    for at, rank in enumerate(ranks):
        columns = _columns(run, (rank,), cut)
        for row, phase in enumerate(PHASES):
            count, total = columns[_series(phase)]["count"], columns[_series(phase)]["sum"]
            seconds[at, row] = np.where(count > 0, total, np.nan)
    return seconds


def _series(phase: str) -> str:
    return f"{phase}_s"


def _name(phase: str) -> str:
    return phase.replace("_", " ")


def _columns(run: RunReader, ranks: Sequence[int], cut: Grid) -> dict[str, dict[str, Array]]:
    """Of each series the merged `_COLUMNS`, each (width,); a series that was never recorded has a count of 0."""
    names = run.names()
    ids = {name: names.series[name] for name in (_WHOLE, *map(_series, PHASES)) if name in names.series}
    empty = {each: np.full(cut.width, names.fill[SERIES_PART][each]) for each in _COLUMNS}
    by_series = dict.fromkeys((_WHOLE, *map(_series, PHASES)), empty)
    if ids and cut.width:
        rows = np.sort(np.array(list(ids.values())))
        block = run.slice(SERIES_PART, ranks, cut.level, cut.start, cut.stop, _COLUMNS, rows)
        columns = to_grid(block, cut, names.rules[SERIES_PART])
        for name, number in ids.items():
            by_series[name] = {each: values[int(np.searchsorted(rows, number))] for each, values in columns.items()}
    return by_series


def _judged(run: RunReader, params: Params) -> dict[str, Any]:
    """The part of `meta` that says what the last of these steps went into."""
    stop = min(params.stop, -1 if run.last_step is None else run.last_step + 1)
    start = max(params.start, stop - 2 * LAST_STEPS)  # late ones and gaps take some
    every = -(-len(params.ranks) // JUDGED_RANKS) or 1
    ranks = params.ranks[::every]
    seconds = read_seconds(run, ranks, start, stop) if start < stop else np.zeros((len(ranks), len(PHASES), 0))
    shares = phase_shares(ranks, seconds)
    return {
        "dominant": shares.dominant,
        "is_loader_bound": shares.is_loader_bound,
        "loader_bound_ranks": list(shares.loader_bound_ranks),
        "shares": [msgspec.to_builtins(each) for each in shares.ranks],
    }


def _note(cut: Grid, params: Params) -> str:
    who = f"rank {params.ranks[0]}" if len(params.ranks) == 1 else f"mean of {len(params.ranks)} ranks"
    return f"{who}; each column: one step" if cut.per == 1 else f"{who}; each column: mean of {cut.per} steps"


FIGURE = Figure(
    name="phases", title="Step phases", build=build, unit="ms",
    data='a line a phase, which add up; "data wait, worst" and so on, which do not; "slowest step"',
    help="What each step spent its time on, stacked; mean of the ranks.",
)  # fmt: skip
