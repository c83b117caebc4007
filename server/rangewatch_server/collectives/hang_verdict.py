"""Which rank did not join: a run that does not advance, from what its ranks say and from what they no longer say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from rangewatch_server.collectives.hang_evidence import (
    Call,
    HangEvidence,
    Line,
    RankEvidence,
    Stop,
    is_in_data_loader,
    line_of,
)
from rangewatch_server.collectives.matching import Desync, Side, mismatch
from rangewatch_server.collectives.records import UNEVEN, Group, GroupKey, kind_of
from rangewatch_server.collectives.straggler import COMMUNICATION_HANG, NON_COMMUNICATION_HANG
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
    """`kind`: communication hang or non-communication hang. `culprits`: who the others wait for; empty where nobody is.
    `missing`: who has not joined what is waited for in `group`, be it a culprit or a rank that waits for one itself
    elsewhere. `since_s`: seconds for which nothing has advanced."""

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
    ranks: Sequence[RankEvidence],
    desyncs: Sequence[Desync] = (),
    silent_after_s: float = SILENT_AFTER_S,
) -> HangFinding | None:
    """Who the run waits for; None while it advances, or while it cannot be said yet.

    `now_ns`: the server's clock. `desyncs`: those of the matched records. Where agents are asked to send more seldom
    than every few seconds, `silent_after_s` must be more than twice that.
    """
    evidence = HangEvidence(now_ns, ranks, silent_after_s)
    if not evidence.reported and not (evidence.silent - evidence.left_behind and evidence.ended):
        return None
    stops = evidence.stops()
    finding = _mismatched(evidence, stops, desyncs) or _missing(evidence, stops)
    if finding is None and not any(map(evidence.is_open, evidence.facts)):
        finding = _nobody_missing(evidence, stops)
    if finding is None or evidence.quiet_s < GONE_AFTER_S:
        return finding
    over = f"Nothing has come from any rank for {lasting(evidence.quiet_s)} since: the run was killed, or is cut off."
    return msgspec.structs.replace(finding, sentence=f"{finding.sentence} {over}")


def _mismatched(evidence: HangEvidence, stops: Sequence[Stop], desyncs: Sequence[Desync]) -> HangFinding | None:
    for stop in stops:
        for sequence in stop.sequences:
            sides = _sides(evidence, stop, sequence)
            if len(sides) > 1:
                return _of_sides(evidence, stop.group, stop.key, sequence, sides)
    waited = {(stop.group.hash, stop.group.name): stop for stop in stops}
    for each in sorted((each for each in desyncs if not each.age), key=lambda each: each.sequence):
        at = waited.get((each.group.hash, each.group.name))
        if at is not None and each.step >= _slowest_step(evidence) - 1:
            return _of_sides(evidence, each.group, at.key, each.sequence, each.sides)
    return None


def _slowest_step(evidence: HangEvidence) -> int:
    facts = [evidence.facts[rank] for rank in evidence.facts.keys() - evidence.left_behind]
    return min((each.last_step for each in facts if each.last_step >= 0), default=0)


def _sides(evidence: HangEvidence, stop: Stop, sequence: int) -> tuple[Side, ...]:
    ranks_by_call: defaultdict[tuple[str, str, float], list[int]] = defaultdict(list)
    for rank in stop.group.ranks:
        call = evidence.call_at(rank, stop.key, sequence)
        if call is not None:
            size = -1.0 if kind_of(call.op) in UNEVEN or call.bytes != call.bytes else call.bytes
            ranks_by_call[call.op, call.dtype, size].append(rank)
    ordered = sorted(ranks_by_call.items(), key=lambda side: (-len(side[1]), side[1]))
    return tuple(Side(op, dtype, _known(size), tuple(ranks)) for (op, dtype, size), ranks in ordered)


def _known(size: float) -> float:
    return float("nan") if size < 0 else size


def _of_sides(
    evidence: HangEvidence, group: Group, key: GroupKey, sequence: int, sides: tuple[Side, ...]
) -> HangFinding:
    odd = _odd_ranks(evidence, group, sides)
    called = [rank for side in sides for rank in side.ranks]
    lines = {rank: str(line) for rank in called if (line := _line(evidence, rank)) is not None}
    sentence = f"Ranks do not call the same. {mismatch(sides, group, sequence, lines)}"
    stop = Stop(key, group, Call(sequence, sides[0].op, sides[0].bytes, sides[0].dtype), sides[0].ranks, ())
    return _finding(evidence, MISMATCH, odd, stop, sentence, sides)


def _odd_ranks(evidence: HangEvidence, group: Group, sides: tuple[Side, ...]) -> tuple[int, ...]:
    """All but the side of most ranks, or all of them where none has most; none yet while the others may decide that."""
    called = {rank for side in sides for rank in side.ranks}
    undecided = sum(map(evidence.is_open, set(group.ranks) - called))
    first, second = len(sides[0].ranks), len(sides[1].ranks)
    if first <= second + undecided and undecided:
        return ()
    return tuple(sorted(rank for side in sides[first > second :] for rank in side.ranks))


def _missing(evidence: HangEvidence, stops: Sequence[Stop]) -> HangFinding | None:
    """Somebody whom others wait for. Who waits for others himself, in another group, is not to blame for it."""
    missing = {rank for stop in stops for rank in stop.missing}
    members = {rank for stop in stops for rank in stop.group.ranks}
    silent = evidence.silent & members if stops else evidence.silent - evidence.left_behind
    free = {rank for rank in missing if not evidence.is_held(rank)}
    culprits = {rank for rank in free if evidence.own_call(rank) is None} | silent or free
    if not culprits and not missing:
        return None
    stuck = next(
        (stop for stop in stops if culprits and culprits <= set(stop.waiting) and _is_stuck(evidence, stop)), None
    )
    if stuck is not None:
        return _finding(evidence, COMMUNICATION, (), stuck, _communication(evidence, stuck))
    concerned = [stop for stop in stops if culprits & {*stop.missing, *(evidence.silent & set(stop.group.ranks))}]
    stop = next(iter(concerned or stops), None)
    if not culprits:
        return _finding(evidence, ORDER, tuple(sorted(missing)), stop, _crossed(evidence, stops, missing))
    cause = _cause(evidence, culprits)
    sentence = " ".join([*([_not_joined(culprits, stop, evidence)] if stop else []), *_why(evidence, culprits)])
    return _finding(evidence, cause, tuple(sorted(culprits)), stop, sentence)


def _cause(evidence: HangEvidence, culprits: set[int]) -> str:
    if culprits & evidence.silent:
        return SILENT
    if culprits & evidence.ended:
        return ENDED
    return DATA_LOADER if any(_loads(evidence, rank) for rank in culprits) else ABSENT


def _is_stuck(evidence: HangEvidence, stop: Stop) -> bool:
    """All of its ranks wait in it, and would be told if it were over."""
    return set(stop.waiting) >= set(stop.group.ranks) and evidence.tells_of_ends(stop.key)


def _communication(evidence: HangEvidence, stop: Stop) -> str:
    return (
        f"All {len(stop.group.ranks)} ranks of group {stop.group.title} have called {_worded(stop.call)} and wait "
        f"in it for {lasting(evidence.since_s)}: nobody is missing, so it is the communication itself (a network, a "
        f"link, a GPU or its driver)."
    )


def _nobody_missing(evidence: HangEvidence, stops: Sequence[Stop]) -> HangFinding | None:
    stop = next((stop for stop in stops if evidence.tells_of_ends(stop.key)), None)
    if stop is not None:
        return _finding(evidence, COMMUNICATION, (), stop, _communication(evidence, stop))
    loading = {rank for rank in evidence.reported if _loads(evidence, rank)}
    reported = [f"No step for {lasting(evidence.since_s)}, and no rank is known to wait in a collective."]
    if stops:  # the last that was called may have ended, and nobody says so
        reported.append(f"The last that was called is {_worded(stops[0].call)} of group {stops[0].group.title}.")
    if loading:
        reported += _why(evidence, loading)
    else:
        reported += [
            "It may be an evaluation, a checkpoint or a compilation, too.",
            *_ended(evidence.ended),
            *_places(evidence),
        ]
    return _finding(evidence, DATA_LOADER if loading else BUSY, tuple(sorted(loading)), None, " ".join(reported))


def _places(evidence: HangEvidence) -> list[str]:
    """Where ranks are, those at the same line together."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(evidence.reported):
        line = _line(evidence, rank)
        if line is not None:
            ranks[str(line)].append(rank)
    most = sorted(ranks.items(), key=lambda place: -len(place[1]))
    return [f"{_capital(named(found))} {'is' if len(found) == 1 else 'are'} at {place}." for place, found in most[:2]]


def _not_joined(culprits: Iterable[int], stop: Stop, evidence: HangEvidence) -> str:
    culprits = sorted(culprits)
    verb = "has" if len(culprits) == 1 else "have"
    waiting = [rank for rank in stop.waiting if rank not in culprits]
    wait = "waits" if len(waiting) == 1 else "wait"
    return (
        f"{_capital(named(culprits))} {verb} not joined {_worded(stop.call)} of group {stop.group.title}, in which "
        f"{named(waiting)} {wait} for {lasting(evidence.since_s)}."
    )


def _crossed(evidence: HangEvidence, stops: Sequence[Stop], missing: set[int]) -> str:
    parts = [f"{named(stop.waiting)} in {_worded(stop.call)} of group {stop.group.title}" for stop in stops[:3]]
    return (
        f"Ranks wait for each other in different groups for {lasting(evidence.since_s)}: {'; '.join(parts)}. They call "
        f"collectives in a different order."
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _ended(ranks: set[int]) -> list[str]:
    return [f"{_capital(named(ranks))} {'has' if len(ranks) == 1 else 'have'} ended."] if ranks else []


def _why(evidence: HangEvidence, culprits: set[int]) -> list[str]:
    reported = []
    silent, ended = culprits & evidence.silent, culprits & evidence.ended
    loading = {rank for rank in culprits if _loads(evidence, rank)}
    if silent:
        last_s = min(evidence.silent_s(evidence.facts[rank]) for rank in silent)
        steps = sorted({evidence.facts[rank].last_step for rank in silent})
        at = f" since step {steps[0]}" if len(steps) == 1 and steps[0] >= 0 else ""
        reported.append(
            f"Nothing has come from {named(silent)} for {lasting(last_s)}{at}: stopped, killed, cut off, or stuck "
            f"where Python cannot run."
        )
    reported += _ended(ended)
    if loading:
        reported.append(f"The data loader of {named(loading)} gives nothing.")
    for rank in sorted(culprits - silent - ended)[:3]:
        line = _line(evidence, rank)
        if line is not None:
            reported.append(f"Rank {rank} is at {line}.")
        call = evidence.own_call(rank)
        if call is not None:
            reported.append(f"Rank {rank} is still in {_worded(call)}, which the others of its group have called too.")
    return reported


def _loads(evidence: HangEvidence, rank: int) -> bool:
    return rank in evidence.facts and is_in_data_loader(evidence.facts[rank].stacks)


def _line(evidence: HangEvidence, rank: int) -> Line | None:
    return line_of(evidence.facts[rank].hang) if rank in evidence.facts else None


def _worded(call: Call) -> str:
    return f"{call.op} of {sized(call.bytes, call.dtype)} (collective {call.sequence})"


def _finding(
    evidence: HangEvidence,
    cause: str,
    culprits: tuple[int, ...],
    stop: Stop | None,
    sentence: str,
    sides: tuple[Side, ...] = (),
) -> HangFinding:
    missing = tuple(sorted({*stop.missing, *(evidence.silent & set(stop.group.ranks))})) if stop else ()
    waiting = tuple(
        rank for rank in sorted(evidence.reported) if evidence.waits_for(rank) is not None and rank not in culprits
    )
    roles = dict.fromkeys(waiting, "waiting") | dict.fromkeys((*missing, *culprits), "missing")
    return HangFinding(
        kind=COMMUNICATION_HANG if cause == COMMUNICATION else NON_COMMUNICATION_HANG,
        cause=cause,
        culprits=culprits,
        missing=missing,
        waiting=waiting,
        silent=tuple(sorted(evidence.silent)),
        group=stop.group if stop else None,
        sequence=stop.call.sequence if stop else None,
        waited_for=stop.call if stop else None,
        sides=sides,
        since_s=evidence.since_s + evidence.quiet_s,
        sentence=sentence,
        ranks=tuple(_row(evidence, rank, roles.get(rank, "other"), stop) for rank in sorted(evidence.facts)),
    )


def _row(evidence: HangEvidence, rank: int, role: str, stop: Stop | None) -> HungRank:
    facts = evidence.facts[rank]
    return HungRank(
        rank=rank,
        role=role,
        is_silent=rank in evidence.silent,
        has_ended=rank in evidence.ended,
        silent_s=evidence.silent_s(facts) + evidence.quiet_s,
        last_step=facts.last_step,
        enqueued=evidence.enqueued(rank, stop.key) if stop else None,
        completed=evidence.completed(rank, stop.key) if stop else None,
        waits_for=evidence.waits_for(rank),
        line=line_of(facts.hang),
        is_in_data_loader=is_in_data_loader(facts.stacks),
    )
