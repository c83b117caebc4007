"""Where in a run NaN or Inf was first, and until when it stayed. Ordered by step and call, never by a clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from rangewatch.wire.records import KINDS
from rangewatch_server.numerics.pyramid import NONFINITE_STEP, RANGES, SUMMARY, level_for
from rangewatch_server.query.inf_by_design import NEAR_LIMIT_BITS
from rangewatch_server.rules.evidence import BACKWARD, FORWARD, OPTIMIZER, Evidence
from rangewatch_server.rules.nonfinite.case import Array, Bad, StepView
from rangewatch_server.rules.recent import rows_of

SKIPS_AT_ONCE = 1_024
"""Steps in which those that the loss scaler skipped are separated at once: by itself each would take a read."""

MOST_RANKS = 64
"""Ranks whose step is examined; of more that are bad at once the lowest."""

MOST_SPELLS = 8
"""Times that NaN or Inf came and went that are examined."""

SCANNED_STEPS = 4_096
"""Steps in which a clean one is searched for."""

LEAST_CLEAN = 8
"""Clean steps in a row that end a spell: of an overflow that some batches escape a few between are clean."""

COLUMNS = 64
"""Columns in which a tensor's first bad step is looked up: each says the exact step."""


class Spell(msgspec.Struct, frozen=True):
    """Bad from `step` on, `clean_step` being the first after which it stayed clean; None where none was found.

    `last_step`: the last that was reported, if that is bad; `step` else. `pauses`: clean steps before `clean_step`.
    """

    step: int
    clean_step: int | None
    last_step: int
    pauses: int = 0


def first_bad(evidence: Evidence) -> Bad | None:
    """The first NaN or Inf of the run; None where there is none but gradient overflows that the loss scaler skipped."""
    step = _first_step(evidence)
    view = None if step is None else view_of(evidence, step)
    return None if view is None else view.first()


def first_bad_of_skipped(evidence: Evidence) -> Bad | None:
    """The first NaN or Inf of a step that the loss scaler skipped, of the first `SKIPS_AT_ONCE` bad ones."""
    for step, _ in islice(evidence.bad_steps(KINDS), SKIPS_AT_ONCE):
        if is_skipped(evidence, step):
            view = view_of(evidence, step)
            return None if view is None else view.first()
    return None


def spells(evidence: Evidence) -> list[Spell]:
    """Ascending; the last may be lasting."""
    all_spells: list[Spell] = []
    start = evidence.start
    while len(all_spells) < MOST_SPELLS:
        step = _first_step(_part(evidence, start, evidence.stop))
        if step is None:
            break
        clean, pauses = _clean_step(evidence, step + 1)
        last = evidence.whole_stop - 1
        is_lasting = clean is None and last > step and bool(bad_ranks(evidence, last))
        all_spells.append(Spell(step, clean, last if is_lasting else step, pauses))
        if clean is None:
            break
        start = clean
    return all_spells


def view_of(evidence: Evidence, step: int, without: Array | None = None) -> StepView | None:
    """The rank and step of the first bad tensor of a step, but those `without`, (t,) bool."""
    views = [StepView(evidence, rank, step, without) for rank in bad_ranks(evidence, step)]
    candidates = [(bad.call_index, bad.rank, view) for view in views if (bad := view.first()) is not None]
    return _with_other_inf(min(candidates, key=lambda each: each[:2])[2]) if candidates else None


def _with_other_inf(view: StepView) -> StepView:
    """The view with the Inf of tensors that hold it by design, where it is more than ever before and what is finite
    beside it lies near the limit: that is an overflow, and was first. Else it is a mask still, of another batch.
    """
    bad, rows = view.first(), view.evidence.run.inf_by_design
    if bad is None or not len(rows):
        return view
    position, log2_max = view.evidence.tensors.position, view.evidence.tensors.log2_max
    with np.errstate(divide="ignore"):
        room = log2_max[rows] - np.log2(view.columns["amax"][rows])
    may_be = (position[rows] < position[bad.tensor]) & (room > 0) & (room < NEAR_LIMIT_BITS)
    if may_be.any():
        rows = rows[may_be]
        view.count_inf(rows[view.masked(rows) > view.most_masked(rows)])
    return view


def first_beside(evidence: Evidence, known: Array) -> int | None:
    """The first step at which another tensor than the `known`, (t,) bool, was bad and was not skipped."""
    ordinals = np.flatnonzero(~known & np.isin(evidence.tensors.kind_rows, rows_of(FORWARD)))
    steps = [step for step in (_first_of(evidence, ordinals), _first_unskipped(evidence)) if step is not None]
    return min(steps, default=None)


def is_skipped(evidence: Evidence, step: int) -> bool:
    """Whether the loss scaler skipped the step: its optimizer did nothing."""
    return bool(np.nanmax(np.append(evidence.series("skipped_step", step, step + 1), 0.0)) > 0)


def bad_ranks(evidence: Evidence, step: int) -> tuple[int, ...]:
    """Ranks that held a NaN or Inf at the step, the lowest `MOST_RANKS`."""
    if not evidence.start <= step < evidence.stop:
        return ()
    return next((ranks for _, ranks in _part(evidence, step, step + 1).bad_steps(KINDS)), ())[:MOST_RANKS]


def _part(evidence: Evidence, start: int, stop: int) -> Evidence:
    return Evidence(evidence.run, stop, start)


def _first_step(evidence: Evidence) -> int | None:
    forward = next((step for step, _ in evidence.bad_steps(FORWARD)), None)
    steps = [step for step in (forward, _first_unskipped(evidence)) if step is not None]
    return min(steps, default=None)


def _first_unskipped(evidence: Evidence) -> int | None:
    """The first step whose gradients or updates were bad and that no scaler skipped."""
    run = evidence.run
    # What has been searched stays searched, but for a restart or late rows.
    key = (run.id, "all skipped", tuple((s.id, s.rewrites) for rank in run.ranks.values() for s in rank.streams))
    known: int | None = run.reader.cache.get(key)
    first_step = run.first_step or 0
    start = evidence.start if known is None else max(evidence.start, known)
    step = _search_unskipped(evidence, start)
    searched = min(evidence.reported_stop, evidence.stop if step is None else step)
    if evidence.start <= (first_step if known is None else known) < searched:
        run.reader.cache.put(key, searched, 100)
    return step


def _search_unskipped(evidence: Evidence, start: int) -> int | None:
    while start < evidence.stop:
        part = _part(evidence, start, evidence.stop)
        step = next((step for step, _ in part.bad_steps((*BACKWARD, *OPTIMIZER))), None)
        if step is None:
            return None
        start = min(step + SKIPS_AT_ONCE, evidence.stop)
        is_bad, _, is_skipped_step = _bad_and_skipped(evidence, step, start, (*BACKWARD, *OPTIMIZER))
        unskipped = np.flatnonzero(is_bad & ~is_skipped_step)
        if len(unskipped):
            return step + int(unskipped[0])
    return None


def _bad_and_skipped(evidence: Evidence, start: int, stop: int, kinds: tuple[str, ...]) -> tuple[Array, Array, Array]:
    """(n,) bool each: a tensor of these kinds was bad, anything was observed, the loss scaler skipped the step."""
    block = evidence.run.slice(
        SUMMARY, list(evidence.ranks), 0, start, stop, ("observed", "nan_count", "inf_count"), np.arange(len(KINDS))
    )
    bad = block.columns["nan_count"] + block.columns["inf_count"] > 0
    skipped = np.nan_to_num(evidence.series("skipped_step", start, stop)) > 0
    is_observed = block.columns["observed"] > 0
    return np.any(bad[rows_of(kinds)], axis=0), np.any(is_observed, axis=0), skipped


def _clean_step(evidence: Evidence, start: int) -> tuple[int | None, int]:
    """The first step from `start` on from which `LEAST_CLEAN` that recorded something, or all that are left, held
    nothing bad but what was skipped; None where there is none. And the clean steps before it.
    """
    clean: list[int] = []
    pauses = 0
    for low in range(start, min(start + SCANNED_STEPS, evidence.whole_stop), 256):
        for step, is_clean in _observed(evidence, low, min(low + 256, evidence.whole_stop)):
            clean.append(step)
            if not is_clean:
                pauses += len(clean) - 1
                clean.clear()
            elif len(clean) == LEAST_CLEAN:
                return clean[0], pauses
    return (clean[0] if clean else None), pauses


def _observed(evidence: Evidence, start: int, stop: int) -> Iterator[tuple[int, bool]]:
    """Steps in which something was recorded, and whether nothing was bad but what was skipped."""
    is_bad_forward, is_observed, _ = _bad_and_skipped(evidence, start, stop, FORWARD)
    is_bad_after, _, is_skipped_step = _bad_and_skipped(evidence, start, stop, (*BACKWARD, *OPTIMIZER))
    is_bad = is_bad_forward | (is_bad_after & ~is_skipped_step)
    return ((start + int(place), not is_bad[place]) for place in np.flatnonzero(is_observed))


def _first_of(evidence: Evidence, ordinals: Array) -> int | None:
    """The first bad step of any of these tensors, as the columns of a coarse level know it."""
    start, stop = evidence.start, evidence.stop
    level = level_for(stop - start, COLUMNS)
    if not len(ordinals) or start >= stop:
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, [NONFINITE_STEP], ordinals)
    first = float(block.columns[NONFINITE_STEP].min(initial=np.inf))
    return int(first) if start <= first < stop else None
