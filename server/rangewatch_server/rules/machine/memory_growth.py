"""Whether a rank's memory had grown before it ran out, since which step, and at once or step by step."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.query.samples import newest, samples
from rangewatch_server.rules.evidence import Evidence

Array = NDArray[Any]

COLUMNS = 256
"""Of a run of any length, in which growth is looked for."""

LEAST_VALUES = 10
WINDOW_NS = 7_200 * 10**9
"""Of samples before the end: 7,200 at one a second, of each GPU. A run of weeks has more than can be read at once."""

RISE = (0.05, 0.9)
"""Shares of the growth at which it has begun, and is over."""

LAST_SHARE = 0.2
"""Of the values: what rises in these no slower than `STILL_RISING` of its rate before has not stopped."""

STILL_RISING = 0.25

AT_ONCE_SHARE = 0.05
"""Of the steps looked at: what grew within fewer did so at once, as with a larger batch."""


class Growth(msgspec.Struct, frozen=True):
    """Bytes: the median of the first half of what is known, and of the last tenth. What had not grown has no step.
    `is_over`: it no longer rises at the end, and `until_step` is where it stopped."""

    before_bytes: float
    after_bytes: float
    has_grown: bool
    since_step: int | None = None
    until_step: int | None = None
    is_at_once: bool = False
    is_over: bool = False

    @property
    def is_leak(self) -> bool:
        """It grew from step to step, and still did at the end; by time alone only that it had grown is known."""
        return self.has_grown and not self.is_at_once and not self.is_over

    @property
    def a_step_bytes(self) -> float | None:
        """What was added in each step on average; None of what came at once, or is not known by steps."""
        if self.since_step is None or self.until_step is None or self.is_at_once:
            return None
        return (self.after_bytes - self.before_bytes) / max(1, self.until_step - self.since_step)


def growth_by_steps(evidence: Evidence, series: str, rank: int, stop: int, share: float) -> Growth | None:
    """Of the largest values of a rank's series before `stop`; None with too few of them. `share`: of what was held, by
    which it must be more."""
    start = evidence.start
    level = level_for(stop - start, COLUMNS)
    size = FANOUT**level
    values = evidence.largest(series, start, stop, level, rank=rank)
    places = np.flatnonzero(np.isfinite(values))
    if len(places) < LEAST_VALUES:
        return None
    held = values[places]
    steps = np.maximum((start // size + places) * size, start)
    growth = _growth_of(held, share)
    if not growth.has_grown:
        return growth
    low, high = float(held[: len(held) // 2].min()), growth.after_bytes
    began, over = (low + part * (high - low) for part in RISE)
    first = int(np.flatnonzero(held <= began)[-1]) if (held <= began).any() else 0
    done = first + int((held[first:] >= over).argmax())
    since = int(steps[first])
    if size > 1 and (width := int(steps[done]) + size - since) <= COLUMNS:
        single = evidence.largest(series, since, min(since + width, stop), rank=rank)
        low_steps = np.flatnonzero(np.isfinite(single) & (single <= began))
        since += int(low_steps[-1]) if len(low_steps) else 0
    is_over = not _rises_at_end(held, (held[done] - held[first]) / max(1, done - first))
    return msgspec.structs.replace(
        growth, before_bytes=float(held[first]), since_step=since, until_step=int(steps[done if is_over else -1]),
        is_at_once=done - first <= max(1, AT_ONCE_SHARE * len(held)), is_over=is_over,
    )  # fmt: skip


def growth_by_time(evidence: Evidence, source: str, rank: int, share: float) -> Growth | None:
    """The same of samples that come once a second: no steps of it are known."""
    column = "memory_used_bytes"
    ends_ns = [each.time_ns for each in newest(evidence.run, source) if each.rank == rank]
    start_ns = max(ends_ns) - WINDOW_NS if ends_ns else None
    chunks = samples(evidence.run, source, [rank], start_ns=start_ns)
    used = np.concatenate([each.columns[column] for each in chunks if column in each.columns] or [np.zeros(0)])
    used = used[np.isfinite(used)]
    return None if len(used) < LEAST_VALUES else _growth_of(used, share)


def _rises_at_end(held: Array, rate: float) -> bool:
    """Whether the last values rise. `rate`: bytes a value before; medians, since single ones scatter."""
    half = max(2, round(LAST_SHARE * len(held) / 2))
    earlier, later = np.median(held[-2 * half : -half]), np.median(held[-half:])
    return bool(later - earlier >= STILL_RISING * rate * half)


def _growth_of(held: Array, share: float) -> Growth:
    before, after = float(np.median(held[: len(held) // 2])), float(np.median(held[-max(1, len(held) // 10) :]))
    return Growth(before, after, has_grown=after > before and after >= before * (1 + share))
