"""Which tiles go, by age and by size: facts in, actions with their bytes out. Pure, no I/O.

Raw columns go before the pyramid: level 0 tiles first, then level 1, up to `TOP`; whole runs last, only those that have
ended, and only when a size is asked for. A tile goes only when the tile above it is stored, so the pyramid above stays
whole and no spike is lost: a column of the level above has its step and its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rangewatch_server.pyramid import FANOUT
from rangewatch_server.store.tiles import WIDTH

DAY_NS = 86_400 * 10**9
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


class Span(msgspec.Struct, frozen=True):
    """When one process recorded which steps. `started_ns` is not before the run was first heard of."""

    started_ns: int
    last_seen_ns: int
    first_step: int
    last_step: int


class RunFacts(msgspec.Struct, frozen=True):
    """What a plan needs to know of a run."""

    id: int
    name: str
    has_ended: bool
    spans: tuple[Span, ...]
    """Of every process that has steps; at least one."""
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

    @property
    def last_step(self) -> int:
        """The greatest step of any process."""
        return max(span.last_step for span in self.spans)


class Thin(msgspec.Struct, frozen=True):
    """Below `step` the tiles under `level` go, but those of `kept`."""

    run: int
    name: str
    step: int
    level: int
    kept: frozenset[int]
    tiles: int
    bytes: int


class Remove(msgspec.Struct, frozen=True):
    """The whole run goes."""

    run: int
    name: str
    bytes: int


Action = Thin | Remove


def end_of(level: int, step: int) -> int:
    """Number of the first tile of `level` that stays when a run is thinned below `step`.

    The tile above must be complete: it is when it ends at or before `step`, which no stream's frontier is below.
    """
    span = WIDTH * FANOUT ** (level + 1)
    return step // span * FANOUT


def kept_at(level: int, kept: Iterable[int]) -> set[int]:
    """Tiles of `level` over the level 0 tiles `kept`: a zoom into an event finds every level on its way."""
    return {tile // FANOUT**level for tile in kept}


def plan(runs: Sequence[RunFacts], policy: Policy, now_ns: int, used_bytes: int) -> list[Action]:
    """What goes, in the order in which it shall go. `used_bytes`: what the database holds now."""
    oldest = sorted(runs, key=lambda run: (run.last_seen_ns, run.id))
    goals = {run.id: _by_age(run, policy, now_ns) for run in oldest}
    removed: set[int] = set()
    if policy.keep_bytes is not None:
        freed = sum(_freed(run, *goals[run.id])[1] for run in oldest)
        removed = _by_size(oldest, goals, used_bytes - policy.keep_bytes - freed)
    thinned = [_thin(run, *goals[run.id]) for run in oldest if run.id not in removed]
    gone = [Remove(run.id, run.name, run.bytes) for run in oldest if run.id in removed]
    return [*(each for each in thinned if each.tiles), *gone]


def _by_age(run: RunFacts, policy: Policy, now_ns: int) -> tuple[int, int]:
    """(step, level) that age asks for, never less than what was done before."""
    if policy.keep_days is None:
        return run.thin_step, run.thin_level
    keep_ns = policy.keep_days * DAY_NS
    level, old_ns = 1, COARSER_EVERY * keep_ns
    while level < TOP and run.has_ended and now_ns - run.last_seen_ns > old_ns:
        level, old_ns = level + 1, old_ns * COARSER_EVERY
    return _goal(run, _young(run, now_ns - keep_ns), level)


def _young(run: RunFacts, since_ns: float) -> int:
    """The first step that any process made after that time, or the end of the run; 0 when all are after it.

    Within a process steps are taken to come evenly. Between two nothing is: a run may be resumed after a month.
    """
    found = [run.last_step + 1]
    for span in run.spans:
        share = (since_ns - span.started_ns) / max(span.last_seen_ns - span.started_ns, 1)
        if share < 1:
            found.append(span.first_step + int(max(share, 0.0) * (span.last_step + 1 - span.first_step)))
    step = min(found)
    return step if step > min(span.first_step for span in run.spans) else 0


def _goal(run: RunFacts, step: int, level: int) -> tuple[int, int]:
    """What was done before, or more of it. A stream's row has one mark, so what is coarse already must not take along
    later steps that only a finer level is asked for: they stay until the policy asks for the coarser one."""
    step, old = min(step, limit(run)) // UNIT * UNIT, (run.thin_step, run.thin_level)
    if step <= 0 or level < run.thin_level or (level > run.thin_level and step < run.thin_step):
        return old
    return max(step, run.thin_step), level


def limit(run: RunFacts) -> int:
    """Thinning never goes past this step: what is not in tiles yet, and a live run's newest steps, stay."""
    newest = run.frontier if run.has_ended else min(run.frontier, run.last_step + 1 - NEWEST_STEPS)
    return max(newest, 0) // UNIT * UNIT


def _by_size(oldest: Sequence[RunFacts], goals: dict[int, tuple[int, int]], excess: int) -> set[int]:
    """Raise `goals` until `excess` bytes are freed; whole runs that have to go besides are returned."""
    for level in range(1, TOP + 1):
        for run in oldest:
            if excess <= 0:
                return set()
            before = _freed(run, *goals[run.id])[1]
            goals[run.id] = _enough(run, goals[run.id], level, before + excess)
            excess -= _freed(run, *goals[run.id])[1] - before
    removed: set[int] = set()
    for run in oldest:
        if excess > 0 and run.has_ended:
            removed.add(run.id)
            excess -= run.bytes - _freed(run, *goals[run.id])[1]
    return removed


def _enough(run: RunFacts, old: tuple[int, int], level: int, wanted: int) -> tuple[int, int]:
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


def _going(run: RunFacts, level: int) -> list[tuple[int, int]]:
    """(step, bytes) of tiles under `level`: they go when a run is thinned below the step. Ascending."""
    kept = [kept_at(under, run.kept) for under in range(level)]
    going = [each for each in run.stored if each.level < level and each.tile not in kept[each.level]]
    return sorted(((each.tile // FANOUT + 1) * WIDTH * FANOUT ** (each.level + 1), each.bytes) for each in going)


def _freed(run: RunFacts, step: int, level: int) -> tuple[int, int]:
    """(tiles, bytes) that go."""
    tiles = freed = 0
    for under in range(level):
        end, kept = end_of(under, step), kept_at(under, run.kept)
        going = [each for each in run.stored if each.level == under and each.tile < end and each.tile not in kept]
        tiles, freed = tiles + sum(each.tiles for each in going), freed + sum(each.bytes for each in going)
    return tiles, freed


def _thin(run: RunFacts, step: int, level: int) -> Thin:
    return Thin(run.id, run.name, step, level, run.kept, *_freed(run, step, level))
