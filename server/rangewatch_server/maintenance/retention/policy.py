"""Which tiles and samples go, by age and by size: facts in, actions with their bytes out. Pure, no I/O.

Raw columns go before the pyramid: level 0 tiles first, then samples, then level 1, up to `TOP`; whole runs last, only
those that have ended, and only when a size is asked for. A tile goes only when the tile above it is stored, so the
pyramid above stays whole and no spike is lost: a column of the level above has its step and its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rangewatch_server.numerics.pyramid import FANOUT
from rangewatch_server.store.tiles import WIDTH

DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9  # samples are counted, and go, by the hour
GB = 10**9
TOP = 3  # the coarsest level that thinning goes to: a column of 512 steps, 1/512 of the bytes
NEWEST_STEPS = 4_096  # of a live run: about two screens of single steps are always there
UNIT = WIDTH * FANOUT  # steps of a level 1 tile: thinning ends on a multiple, where that tile has taken over
COARSER_EVERY = 4  # a run that ended this many times `keep_days` ago loses a level more, and again


class Policy(msgspec.Struct, frozen=True):
    """What to keep: full detail for `keep_days`, and at most `keep_bytes` in all; None for no limit."""

    keep_days: float | None = None
    keep_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether anything goes at all."""
        return self.keep_days is not None or self.keep_bytes is not None


class Stored(msgspec.Struct, frozen=True):
    """Tiles of one number and level, of all streams and parts of a run."""

    level: int
    tile: int
    tiles: int
    bytes: int


class StoredSamples(msgspec.Struct, frozen=True):
    """Chunks of samples of a run that may go, by the hour of their last row. `hour`: since 1970, by our clock."""

    hour: int
    chunks: int
    bytes: int


class Span(msgspec.Struct, frozen=True):
    """When one process recorded which steps. `started_ns` is not before the run was first heard of."""

    started_ns: int
    last_seen_ns: int
    first_step: int
    last_step: int


class RunDetails(msgspec.Struct, frozen=True):
    """What a plan needs to know of a run."""

    id: int
    name: str
    has_ended: bool
    spans: tuple[Span, ...]
    """Of every process that has steps."""
    last_seen_ns: int
    frontier: int
    """All steps below it are in tiles, on every stream that still sends."""
    thin_step: int
    thin_level: int
    """What all streams were thinned to: below `thin_step` the tiles under `thin_level` have gone or are to go."""
    kept: frozenset[int]
    """Level 0 tiles that stay whatever happens: around events."""
    stored: tuple[Stored, ...]
    bytes: int
    """Of all its rows."""
    samples: tuple[StoredSamples, ...] = ()
    """But those of the steps of `kept`; ascending."""
    corrected: Mapping[int, int] = {}
    """Process -> when it was last heard of, where the server's clock was wrong (clocks.py)."""

    @property
    def last_step(self) -> int:
        """The greatest step of any process; -1 when none has one."""
        return max((span.last_step for span in self.spans), default=-1)


class Thin(msgspec.Struct, frozen=True):
    """Below `step` the tiles under `level` go, but those of `kept`."""

    run: int
    name: str
    step: int
    level: int
    kept: frozenset[int]
    tiles: int
    bytes: int


class Trim(msgspec.Struct, frozen=True):
    """Samples from before `before_ns`, by our clock, go, but those with a step in one of the level 0 tiles `kept`."""

    run: int
    name: str
    before_ns: int
    kept: frozenset[int]
    chunks: int
    bytes: int
    corrected: Mapping[int, int] = {}
    """As of the run."""


class Remove(msgspec.Struct, frozen=True):
    """The whole run goes."""

    run: int
    name: str
    bytes: int


Action = Thin | Trim | Remove


def end_of(level: int, step: int) -> int:
    """Number of the first tile of `level` that stays when a run is thinned below `step`.

    The tile above must be complete: it is when it ends at or before `step`, which no stream's frontier is below.
    """
    span = WIDTH * FANOUT ** (level + 1)
    return step // span * FANOUT


def kept_at(level: int, kept: Iterable[int]) -> set[int]:
    """Tiles of `level` over the level 0 tiles `kept`: a zoom into an event finds every level on its way."""
    return {tile // FANOUT**level for tile in kept}


class _Goal(msgspec.Struct):
    """What is to go of one run: tiles under `level` below `step`, samples of the hours before `hour`."""

    run: RunDetails
    step: int
    level: int
    hour: int

    @property
    def bytes(self) -> int:
        """What that frees."""
        return _freed(self.run, self.step, self.level)[1] + _trimmed(self.run, self.hour)[1]


def plan(runs: Sequence[RunDetails], policy: Policy, now_ns: int, used_bytes: int) -> list[Action]:
    """What goes, in the order in which it shall go. `used_bytes`: what the database holds now."""
    oldest = sorted(runs, key=lambda run: (run.last_seen_ns, run.id))
    goals = [_Goal(run, *_by_age(run, policy, now_ns), _hour_by_age(run, policy, now_ns)) for run in oldest]
    removed: set[int] = set()
    if policy.keep_bytes is not None:
        freed = sum(goal.bytes for goal in goals)
        removed = _by_size(goals, used_bytes - policy.keep_bytes - freed, now_ns)
    stay = [goal for goal in goals if goal.run.id not in removed]
    thinned = [_thin(goal.run, goal.step, goal.level) for goal in stay]
    trimmed = [_trim(goal.run, goal.hour) for goal in stay]
    gone = [Remove(goal.run.id, goal.run.name, goal.run.bytes) for goal in goals if goal.run.id in removed]
    return [*(each for each in thinned if each.tiles), *(each for each in trimmed if each.chunks), *gone]


def _by_age(run: RunDetails, policy: Policy, now_ns: int) -> tuple[int, int]:
    """(step, level) that age asks for, never less than what was done before."""
    if policy.keep_days is None:
        return run.thin_step, run.thin_level
    keep_ns = policy.keep_days * DAY_NS
    level, old_ns = 1, COARSER_EVERY * keep_ns
    while level < TOP and run.has_ended and now_ns - run.last_seen_ns > old_ns:
        level, old_ns = level + 1, old_ns * COARSER_EVERY
    return _goal(run, _young(run, now_ns - keep_ns), level)


def _young(run: RunDetails, since_ns: float) -> int:
    """The first step that any process made after that time, or the end of the run; 0 when all are after it.

    Within a process steps are taken to come evenly. Between two nothing is: a run may be resumed after a month.
    """
    steps = [run.last_step + 1]
    for span in run.spans:
        share = (since_ns - span.started_ns) / max(span.last_seen_ns - span.started_ns, 1)
        if share < 1:
            steps.append(span.first_step + int(max(share, 0.0) * (span.last_step + 1 - span.first_step)))
    step = min(steps)
    return step if step > min((span.first_step for span in run.spans), default=0) else 0


def _goal(run: RunDetails, step: int, level: int) -> tuple[int, int]:
    """What was done before, or more of it. A stream's row has one mark, so what is coarse already must not take along
    later steps that only a finer level is asked for: they stay until the policy asks for the coarser one."""
    step, old = min(step, limit(run)) // UNIT * UNIT, (run.thin_step, run.thin_level)
    if step <= 0 or level < run.thin_level or (level > run.thin_level and step < run.thin_step):
        return old
    return max(step, run.thin_step), level


def limit(run: RunDetails) -> int:
    """Thinning never goes past this step: what is not in tiles yet, and a live run's newest steps, stay."""
    newest = run.frontier if run.has_ended else min(run.frontier, run.last_step + 1 - NEWEST_STEPS)
    return max(newest, 0) // UNIT * UNIT


def _by_size(goals: Sequence[_Goal], excess: int, now_ns: int) -> set[int]:
    """Raise `goals` until `excess` bytes are freed; whole runs that have to go besides are returned."""
    for level in range(1, TOP + 1):
        for goal in goals:
            if excess <= 0:
                return set()
            before = _freed(goal.run, goal.step, goal.level)[1]
            goal.step, goal.level = _enough(goal.run, (goal.step, goal.level), level, before + excess)
            excess -= _freed(goal.run, goal.step, goal.level)[1] - before
        if level == 1:
            excess = _by_hours(goals, excess, now_ns)
    removed: set[int] = set()
    for goal in goals:
        if excess > 0 and goal.run.has_ended:
            removed.add(goal.run.id)
            excess -= goal.run.bytes - goal.bytes
    return removed


def _by_hours(goals: Sequence[_Goal], excess: int, now_ns: int) -> int:
    """Raise the goals for samples; what is still to be freed."""
    for goal in goals:
        end = _last_hour(goal.run, now_ns)
        for each in goal.run.samples:
            if excess > 0 and goal.hour <= each.hour < end:
                goal.hour = each.hour + 1
                excess -= each.bytes
    return excess


def _hour_by_age(run: RunDetails, policy: Policy, now_ns: int) -> int:
    if policy.keep_days is None:
        return 0
    return min(int(now_ns - policy.keep_days * DAY_NS) // HOUR_NS, _last_hour(run, now_ns))


def _last_hour(run: RunDetails, now_ns: int) -> int:
    """Samples of this hour stay: of a live run those of the last hour or two."""
    return 2**62 if run.has_ended else now_ns // HOUR_NS - 1


def _enough(run: RunDetails, old: tuple[int, int], level: int, wanted: int) -> tuple[int, int]:
    """The least goal at `level` that frees `wanted` bytes in all; the greatest there is where none does."""
    whole = _goal(run, limit(run), level)
    if whole == old or whole[1] != level or level < old[1]:
        return old
    if level > max(run.thin_level, 1):  # a coarser level holds for the whole run: the streams' rows have one mark only
        return whole
    freed = 0
    for step, size in _going(run, level):
        freed += size
        if freed >= wanted and step <= whole[0]:
            return max(_goal(run, step, level), old)
    return whole


def _going(run: RunDetails, level: int) -> list[tuple[int, int]]:
    """(step, bytes) of tiles under `level`: they go when a run is thinned below the step. Ascending."""
    kept = [kept_at(under, run.kept) for under in range(level)]
    going = [each for each in run.stored if each.level < level and each.tile not in kept[each.level]]
    return sorted(((each.tile // FANOUT + 1) * WIDTH * FANOUT ** (each.level + 1), each.bytes) for each in going)


def _freed(run: RunDetails, step: int, level: int) -> tuple[int, int]:
    """(tiles, bytes) that go."""
    tiles = freed = 0
    for under in range(level):
        end, kept = end_of(under, step), kept_at(under, run.kept)
        going = [each for each in run.stored if each.level == under and each.tile < end and each.tile not in kept]
        tiles, freed = tiles + sum(each.tiles for each in going), freed + sum(each.bytes for each in going)
    return tiles, freed


def _thin(run: RunDetails, step: int, level: int) -> Thin:
    return Thin(run.id, run.name, step, level, run.kept, *_freed(run, step, level))


def _trimmed(run: RunDetails, hour: int) -> tuple[int, int]:
    """(chunks, bytes) of samples that go."""
    going = [each for each in run.samples if each.hour < hour]
    return sum(each.chunks for each in going), sum(each.bytes for each in going)


def _trim(run: RunDetails, hour: int) -> Trim:
    return Trim(run.id, run.name, hour * HOUR_NS, run.kept, *_trimmed(run, hour), run.corrected)
