"""Which rank did not join: a run that does not advance, from what its ranks say and from what they no longer say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from rangewatch.wire.events import CodeLine
from rangewatch_server.collectives.hang_evidence import (
    Call,
    HangEvidence,
    RankEvidence,
    Stop,
    is_in_data_loader,
    line_of,
)
from rangewatch_server.collectives.matching import Desync, Side, mismatch
from rangewatch_server.collectives.records import UNEVEN, Group, GroupKey, kind_of
from rangewatch_server.core.text import duration_text, ranks_text, size_text

SILENT_AFTER_S = 8.0
"""Seconds without a message, which come every two or so, after which a rank is silent while others speak."""

GONE_AFTER_S = 30.0
"""Seconds without a word from any rank of a run that hung, after which it is said to be over."""

MISMATCH, SILENT, ENDED, DATA_LOADER = "mismatch", "silent", "ended", "data loader"
ABSENT, ORDER, COMMUNICATION, BUSY, UNDECIDED = "absent", "order", "communication", "busy", "undecided"
"""Causes. Absent: elsewhere in its code. Order: ranks wait for each other in different groups. Busy: nobody waits.
Undecided: who is missing is among ranks that have not reported what they wait for.
"""

NON_COMMUNICATION_HANG = "non-communication hang"
COMMUNICATION_HANG = "communication hang"
"""The kinds of a finding."""


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
    line: CodeLine | None
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
    concerned = {*evidence.by_rank, *evidence.unheard} if stops else evidence.by_rank
    if finding is None and not any(map(evidence.is_open, concerned)):
        finding = _nobody_missing(evidence, stops)
    elif finding is None and not evidence.is_in_grace:
        finding = _undecided(evidence, stops)
    if finding is None or evidence.quiet_s < GONE_AFTER_S:
        return finding
    quiet = duration_text(evidence.quiet_s)
    over = f"Nothing has come from any rank for {quiet} since: the run was killed, or is cut off."
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
    report = [evidence.by_rank[rank] for rank in evidence.by_rank.keys() - evidence.left_behind]
    return min((each.last_step for each in report if each.last_step >= 0), default=0)


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
    if free - evidence.unknown or silent:
        free -= evidence.unknown
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
    joined = [_not_joined(culprits, stop, evidence)] if stop else []
    sentence = " ".join([*joined, *_why(evidence, culprits), *_not_reported(evidence, stop, culprits)])
    return _finding(evidence, cause, tuple(sorted(culprits)), stop, sentence)


def _not_reported(evidence: HangEvidence, stop: Stop | None, culprits: set[int]) -> list[str]:
    """Ranks that may be missing as well, or not: nobody knows."""
    unknown = sorted(evidence.lacking(stop, evidence.unknown - culprits)) if stop else []
    if not unknown:
        return []
    verb, they = ("has", "it") if len(unknown) == 1 else ("have", "they")
    return [
        f"Whether {ranks_text(unknown)} {verb} called it is not known: {they} {verb} not reported"
        f"{_since_step(evidence, unknown)}."
    ]


def _since_step(evidence: HangEvidence, ranks: Iterable[int]) -> str:
    steps = {evidence.by_rank[rank].last_step if rank in evidence.by_rank else -1 for rank in ranks}
    return f" since step {min(steps)}" if len(steps) == 1 and min(steps) >= 0 else ""


def _undecided(evidence: HangEvidence, stops: Sequence[Stop]) -> HangFinding | None:
    """Ranks wait in a collective that others, whose state is not known, may have called or not."""
    stop = next((stop for stop in stops if evidence.lacking(stop, evidence.unknown)), None)
    if stop is None:
        return _nobody_missing(evidence, stops)
    wait = "waits" if len(stop.waiting) == 1 else "wait"
    sentence = (
        f"{_capital(ranks_text(stop.waiting))} {wait} in {_worded(stop.call)} of group {stop.group.title} for "
        f"{duration_text(evidence.since_s)}."
    )
    return _finding(evidence, UNDECIDED, (), stop, " ".join([sentence, *_not_reported(evidence, stop, set())]))


def _cause(evidence: HangEvidence, culprits: set[int]) -> str:
    if culprits & evidence.silent:
        return SILENT
    if culprits & evidence.ended:
        return ENDED
    return DATA_LOADER if any(_loads(evidence, rank) for rank in culprits) else ABSENT


def _is_stuck(evidence: HangEvidence, stop: Stop) -> bool:
    """All of its ranks wait in it, and would report if it were over."""
    return set(stop.waiting) >= set(stop.group.ranks) and evidence.reports_ends(stop.key)


def _communication(evidence: HangEvidence, stop: Stop) -> str:
    return (
        f"All {len(stop.group.ranks)} ranks of group {stop.group.title} have called {_worded(stop.call)} and wait "
        f"in it for {duration_text(evidence.since_s)}: nobody is missing, so it is the communication itself "
        f"(a network, a link, a GPU or its driver)."
    )


def _nobody_missing(evidence: HangEvidence, stops: Sequence[Stop]) -> HangFinding | None:
    stop = next((stop for stop in stops if evidence.reports_ends(stop.key)), None)
    if stop is not None:
        return _finding(evidence, COMMUNICATION, (), stop, _communication(evidence, stop))
    loading = {rank for rank in evidence.reported if _loads(evidence, rank)}
    reported = [f"No step for {duration_text(evidence.since_s)}, and no rank is known to wait in a collective."]
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
    return [
        f"{_capital(ranks_text(at_place))} {'is' if len(at_place) == 1 else 'are'} at {place}."
        for place, at_place in most[:2]
    ]


def _not_joined(culprits: Iterable[int], stop: Stop, evidence: HangEvidence) -> str:
    culprits = sorted(culprits)
    verb = "has" if len(culprits) == 1 else "have"
    waiting = [rank for rank in stop.waiting if rank not in culprits]
    wait = "waits" if len(waiting) == 1 else "wait"
    return (
        f"{_capital(ranks_text(culprits))} {verb} not joined {_worded(stop.call)} of group {stop.group.title}, in "
        f"which {ranks_text(waiting)} {wait} for {duration_text(evidence.since_s)}."
    )


def _crossed(evidence: HangEvidence, stops: Sequence[Stop], missing: set[int]) -> str:
    parts = [f"{ranks_text(stop.waiting)} in {_worded(stop.call)} of group {stop.group.title}" for stop in stops[:3]]
    return (
        f"Ranks wait for each other in different groups for {duration_text(evidence.since_s)}: {'; '.join(parts)}. "
        f"They call collectives in a different order."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ended(ranks: set[int]) -> list[str]:
    return [f"{_capital(ranks_text(ranks))} {'has' if len(ranks) == 1 else 'have'} ended."] if ranks else []


def _why(evidence: HangEvidence, culprits: set[int]) -> list[str]:
    reported = []
    silent, ended = culprits & evidence.silent, culprits & evidence.ended
    loading = {rank for rank in culprits if _loads(evidence, rank)}
    if silent:
        last_s = min(evidence.silent_s(evidence.by_rank[rank]) for rank in silent)
        at = _since_step(evidence, silent)
        reported.append(
            f"Nothing has come from {ranks_text(silent)} for {duration_text(last_s)}{at}: stopped, killed, cut off, or "
            f"stuck where Python cannot run."
        )
    reported += _ended(ended)
    if loading:
        reported.append(f"The data loader of {ranks_text(loading)} gives nothing.")
    for rank in sorted(culprits - silent - ended)[:3]:
        line = _line(evidence, rank)
        if line is not None:
            reported.append(f"Rank {rank} is at {line}.")
        call = evidence.own_call(rank)
        if call is not None:
            reported.append(f"Rank {rank} is still in {_worded(call)}, which the others of its group have called too.")
    return reported


def _loads(evidence: HangEvidence, rank: int) -> bool:
    return rank in evidence.by_rank and is_in_data_loader(evidence.by_rank[rank].stacks)


def _line(evidence: HangEvidence, rank: int) -> CodeLine | None:
    return line_of(evidence.by_rank[rank].hang) if rank in evidence.by_rank else None


def _worded(call: Call) -> str:
    return f"{call.op} of {size_text(call.bytes, call.dtype)} (collective {call.sequence})"


def _finding(
    evidence: HangEvidence,
    cause: str,
    culprits: tuple[int, ...],
    stop: Stop | None,
    sentence: str,
    sides: tuple[Side, ...] = (),
) -> HangFinding:
    lacking = {*stop.missing, *(evidence.silent & set(stop.group.ranks))} if stop else set()
    missing = tuple(sorted(lacking - (evidence.unknown - set(culprits))))
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
        ranks=tuple(_row(evidence, rank, roles.get(rank, "other"), stop) for rank in sorted(evidence.by_rank)),
    )


def _row(evidence: HangEvidence, rank: int, role: str, stop: Stop | None) -> HungRank:
    report = evidence.by_rank[rank]
    return HungRank(
        rank=rank,
        role=role,
        is_silent=rank in evidence.silent,
        has_ended=rank in evidence.ended,
        silent_s=evidence.silent_s(report) + evidence.quiet_s,
        last_step=report.last_step,
        enqueued=evidence.enqueued(rank, stop.key) if stop else None,
        completed=evidence.completed(rank, stop.key) if stop else None,
        waits_for=evidence.waits_for(rank),
        line=line_of(report.hang),
        is_in_data_loader=is_in_data_loader(report.stacks),
    )
