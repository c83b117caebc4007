"""Which rank did not join: a run that does not advance, from what its ranks say and from what they no longer say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from rangewatch_server.collectives.desync import Desync, Side, mismatch
from rangewatch_server.collectives.hang_facts import Call, Line, RankFacts, is_in_data_loader, line_of
from rangewatch_server.collectives.hang_scene import Scene, Stop
from rangewatch_server.collectives.ops import UNEVEN, kind_of
from rangewatch_server.collectives.records import Group, GroupKey
from rangewatch_server.collectives.verdict import COMMUNICATION_HANG, NON_COMMUNICATION_HANG
from rangewatch_server.collectives.wording import lasting, named, sized

SILENT_AFTER_S = 8.0
"""Seconds without a message, which come every two or so, after which a rank is silent while others speak."""

GONE_AFTER_S = 30.0
"""Seconds without a word from any rank of a run that hung, after which it is said to be over."""

MISMATCH, SILENT, ENDED, DATA_LOADER = "mismatch", "silent", "ended", "data loader"
ABSENT, ORDER, COMMUNICATION, BUSY = "absent", "order", "communication", "busy"
"""Causes. Absent: elsewhere in its code. Order: ranks wait for each other in different groups. Busy: nobody waits."""


class HungRank(msgspec.Struct, frozen=True):
    """One rank's row on the page. `enqueued` and `completed` are of the finding's group; None where not known."""

    rank: int
    role: str
    """"missing", "waiting" or "other"""
    is_silent: bool
    has_ended: bool
    silent_s: float
    last_step: int
    enqueued: int | None
    completed: int | None
    waits_for: Call | None
    line: Line | None
    is_in_data_loader: bool


class HangFinding(msgspec.Struct, frozen=True):
    """`kind`: one of C4's two. `culprits`: who the others wait for; empty where nobody is. `missing`: who has not
    joined what is waited for in `group`, be it a culprit or a rank that waits for one itself elsewhere. `since_s`:
    seconds for which nothing has advanced."""

    kind: str
    cause: str
    culprits: tuple[int, ...]
    missing: tuple[int, ...]
    waiting: tuple[int, ...]
    silent: tuple[int, ...]
    group: Group | None
    sequence: int | None
    waited_for: Call | None
    sides: tuple[Side, ...]
    since_s: float
    sentence: str
    ranks: tuple[HungRank, ...]


def hang(
    now_ns: int,
    ranks: Sequence[RankFacts],
    desyncs: Sequence[Desync] = (),
    silent_after_s: float = SILENT_AFTER_S,
) -> HangFinding | None:
    """Who the run waits for; None while it advances, or while it cannot be said yet.

    `now_ns`: the server's clock. `desyncs`: those of the matched records. Where agents are asked to send more seldom
    than every few seconds, `silent_after_s` must be more than twice that.
    """
    scene = Scene(now_ns, ranks, silent_after_s)
    if not scene.told and not (scene.silent - scene.left_behind and scene.ended):
        return None
    stops = scene.stops()
    finding = _mismatched(scene, stops, desyncs) or _missing(scene, stops)
    if finding is None and not any(map(scene.is_open, scene.facts)):
        finding = _nobody_missing(scene, stops)
    if finding is None or scene.quiet_s < GONE_AFTER_S:
        return finding
    over = f"Nothing has come from any rank for {lasting(scene.quiet_s)} since: the run was killed, or is cut off."
    return msgspec.structs.replace(finding, sentence=f"{finding.sentence} {over}")


def _mismatched(scene: Scene, stops: Sequence[Stop], desyncs: Sequence[Desync]) -> HangFinding | None:
    for stop in stops:
        for sequence in stop.sequences:
            sides = _sides(scene, stop, sequence)
            if len(sides) > 1:
                return _of_sides(scene, stop.group, stop.key, sequence, sides)
    waited = {(stop.group.hash, stop.group.name): stop for stop in stops}
    for each in sorted((each for each in desyncs if not each.age), key=lambda each: each.sequence):
        at = waited.get((each.group.hash, each.group.name))
        if at is not None and each.step >= _slowest_step(scene) - 1:
            return _of_sides(scene, each.group, at.key, each.sequence, each.sides)
    return None


def _slowest_step(scene: Scene) -> int:
    facts = [scene.facts[rank] for rank in scene.facts.keys() - scene.left_behind]
    return min((each.last_step for each in facts if each.last_step >= 0), default=0)


def _sides(scene: Scene, stop: Stop, sequence: int) -> tuple[Side, ...]:
    callers: defaultdict[tuple[str, str, float], list[int]] = defaultdict(list)
    for rank in stop.group.ranks:
        call = scene.call_at(rank, stop.key, sequence)
        if call is not None:
            size = -1.0 if kind_of(call.op) in UNEVEN or call.bytes != call.bytes else call.bytes
            callers[call.op, call.dtype, size].append(rank)
    ordered = sorted(callers.items(), key=lambda side: (-len(side[1]), side[1]))
    return tuple(Side(op, dtype, _known(size), tuple(ranks)) for (op, dtype, size), ranks in ordered)


def _known(size: float) -> float:
    return float("nan") if size < 0 else size


def _of_sides(scene: Scene, group: Group, key: GroupKey, sequence: int, sides: tuple[Side, ...]) -> HangFinding:
    odd = _odd_ranks(scene, group, sides)
    called = [rank for side in sides for rank in side.ranks]
    lines = {rank: str(line) for rank in called if (line := _line(scene, rank)) is not None}
    sentence = f"Ranks do not call the same. {mismatch(sides, group, sequence, lines)}"
    stop = Stop(key, group, Call(sequence, sides[0].op, sides[0].bytes, sides[0].dtype), sides[0].ranks, ())
    return _finding(scene, MISMATCH, odd, stop, sentence, sides)


def _odd_ranks(scene: Scene, group: Group, sides: tuple[Side, ...]) -> tuple[int, ...]:
    """All but the side of most ranks, or all of them where none has most; none yet while the others may decide that."""
    called = {rank for side in sides for rank in side.ranks}
    undecided = sum(map(scene.is_open, set(group.ranks) - called))
    first, second = len(sides[0].ranks), len(sides[1].ranks)
    if first <= second + undecided and undecided:
        return ()
    return tuple(sorted(rank for side in sides[first > second :] for rank in side.ranks))


def _missing(scene: Scene, stops: Sequence[Stop]) -> HangFinding | None:
    """Somebody whom others wait for. Who waits for others himself, in another group, is not to blame for it."""
    missing = {rank for stop in stops for rank in stop.missing}
    members = {rank for stop in stops for rank in stop.group.ranks}
    silent = scene.silent & members if stops else scene.silent - scene.left_behind
    free = {rank for rank in missing if not scene.is_held(rank)}
    culprits = {rank for rank in free if scene.own_call(rank) is None} | silent or free
    if not culprits and not missing:
        return None
    stuck = next(
        (stop for stop in stops if culprits and culprits <= set(stop.waiting) and _is_stuck(scene, stop)), None
    )
    if stuck is not None:
        return _finding(scene, COMMUNICATION, (), stuck, _communication(scene, stuck))
    concerned = [stop for stop in stops if culprits & {*stop.missing, *(scene.silent & set(stop.group.ranks))}]
    stop = next(iter(concerned or stops), None)
    if not culprits:
        return _finding(scene, ORDER, tuple(sorted(missing)), stop, _crossed(scene, stops, missing))
    cause = _cause(scene, culprits)
    sentence = " ".join([*([_not_joined(culprits, stop, scene)] if stop else []), *_why(scene, culprits)])
    return _finding(scene, cause, tuple(sorted(culprits)), stop, sentence)


def _cause(scene: Scene, culprits: set[int]) -> str:
    if culprits & scene.silent:
        return SILENT
    if culprits & scene.ended:
        return ENDED
    return DATA_LOADER if any(_loads(scene, rank) for rank in culprits) else ABSENT


def _is_stuck(scene: Scene, stop: Stop) -> bool:
    """All of its ranks wait in it, and would be told if it were over."""
    return set(stop.waiting) >= set(stop.group.ranks) and scene.tells_of_ends(stop.key)


def _communication(scene: Scene, stop: Stop) -> str:
    return (
        f"All {len(stop.group.ranks)} ranks of group {stop.group.title} have called {_worded(stop.call)} and wait "
        f"in it for {lasting(scene.since_s)}: nobody is missing, so it is the communication itself (a network, a "
        f"link, a GPU or its driver)."
    )


def _nobody_missing(scene: Scene, stops: Sequence[Stop]) -> HangFinding | None:
    stop = next((stop for stop in stops if scene.tells_of_ends(stop.key)), None)
    if stop is not None:
        return _finding(scene, COMMUNICATION, (), stop, _communication(scene, stop))
    loading = {rank for rank in scene.told if _loads(scene, rank)}
    told = [f"No step for {lasting(scene.since_s)}, and no rank is known to wait in a collective."]
    if stops:  # the last that was called may have ended, and nobody says so
        told.append(f"The last that was called is {_worded(stops[0].call)} of group {stops[0].group.title}.")
    if loading:
        told += _why(scene, loading)
    else:
        told += ["It may be an evaluation, a checkpoint or a compilation, too.", *_ended(scene.ended), *_places(scene)]
    return _finding(scene, DATA_LOADER if loading else BUSY, tuple(sorted(loading)), None, " ".join(told))


def _places(scene: Scene) -> list[str]:
    """Where ranks are, those at the same line together."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(scene.told):
        line = _line(scene, rank)
        if line is not None:
            ranks[str(line)].append(rank)
    most = sorted(ranks.items(), key=lambda place: -len(place[1]))
    return [f"{_capital(named(found))} {'is' if len(found) == 1 else 'are'} at {place}." for place, found in most[:2]]


def _not_joined(culprits: Iterable[int], stop: Stop, scene: Scene) -> str:
    culprits = sorted(culprits)
    verb = "has" if len(culprits) == 1 else "have"
    waiting = [rank for rank in stop.waiting if rank not in culprits]
    wait = "waits" if len(waiting) == 1 else "wait"
    return (
        f"{_capital(named(culprits))} {verb} not joined {_worded(stop.call)} of group {stop.group.title}, in which "
        f"{named(waiting)} {wait} for {lasting(scene.since_s)}."
    )


def _crossed(scene: Scene, stops: Sequence[Stop], missing: set[int]) -> str:
    parts = [f"{named(stop.waiting)} in {_worded(stop.call)} of group {stop.group.title}" for stop in stops[:3]]
    return (
        f"Ranks wait for each other in different groups for {lasting(scene.since_s)}: {'; '.join(parts)}. They call "
        f"collectives in a different order."
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _ended(ranks: set[int]) -> list[str]:
    return [f"{_capital(named(ranks))} {'has' if len(ranks) == 1 else 'have'} ended."] if ranks else []


def _why(scene: Scene, culprits: set[int]) -> list[str]:
    told = []
    silent, ended = culprits & scene.silent, culprits & scene.ended
    loading = {rank for rank in culprits if _loads(scene, rank)}
    if silent:
        last_s = min(scene.silent_s(scene.facts[rank]) for rank in silent)
        steps = sorted({scene.facts[rank].last_step for rank in silent})
        at = f" since step {steps[0]}" if len(steps) == 1 and steps[0] >= 0 else ""
        told.append(
            f"Nothing has come from {named(silent)} for {lasting(last_s)}{at}: stopped, killed, cut off, or stuck "
            f"where Python cannot run."
        )
    told += _ended(ended)
    if loading:
        told.append(f"The data loader of {named(loading)} gives nothing.")
    for rank in sorted(culprits - silent - ended)[:3]:
        line = _line(scene, rank)
        if line is not None:
            told.append(f"Rank {rank} is at {line}.")
        call = scene.own_call(rank)
        if call is not None:
            told.append(f"Rank {rank} is still in {_worded(call)}, which the others of its group have called too.")
    return told


def _loads(scene: Scene, rank: int) -> bool:
    return rank in scene.facts and is_in_data_loader(scene.facts[rank].stacks)


def _line(scene: Scene, rank: int) -> Line | None:
    return line_of(scene.facts[rank].hang) if rank in scene.facts else None


def _worded(call: Call) -> str:
    return f"{call.op} of {sized(call.bytes, call.dtype)} (collective {call.sequence})"


def _finding(
    scene: Scene,
    cause: str,
    culprits: tuple[int, ...],
    stop: Stop | None,
    sentence: str,
    sides: tuple[Side, ...] = (),
) -> HangFinding:
    missing = tuple(sorted({*stop.missing, *(scene.silent & set(stop.group.ranks))})) if stop else ()
    waiting = tuple(rank for rank in sorted(scene.told) if scene.waits_for(rank) is not None and rank not in culprits)
    roles = dict.fromkeys(waiting, "waiting") | dict.fromkeys((*missing, *culprits), "missing")
    return HangFinding(
        kind=COMMUNICATION_HANG if cause == COMMUNICATION else NON_COMMUNICATION_HANG,
        cause=cause,
        culprits=culprits,
        missing=missing,
        waiting=waiting,
        silent=tuple(sorted(scene.silent)),
        group=stop.group if stop else None,
        sequence=stop.call.sequence if stop else None,
        waited_for=stop.call if stop else None,
        sides=sides,
        since_s=scene.since_s + scene.quiet_s,
        sentence=sentence,
        ranks=tuple(_row(scene, rank, roles.get(rank, "other"), stop) for rank in sorted(scene.facts)),
    )


def _row(scene: Scene, rank: int, role: str, stop: Stop | None) -> HungRank:
    facts = scene.facts[rank]
    return HungRank(
        rank=rank,
        role=role,
        is_silent=rank in scene.silent,
        has_ended=rank in scene.ended,
        silent_s=scene.silent_s(facts) + scene.quiet_s,
        last_step=facts.last_step,
        enqueued=scene.enqueued(rank, stop.key) if stop else None,
        completed=scene.completed(rank, stop.key) if stop else None,
        waits_for=scene.waits_for(rank),
        line=line_of(facts.hang),
        is_in_data_loader=is_in_data_loader(facts.stacks),
    )
