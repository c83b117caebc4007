"""All that is known of the ranks of a run that does not advance: who speaks, who waits in what, who is not there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from rangewatch_server.collectives.hang_facts import Call, RankFacts, progress_of, seconds_of
from rangewatch_server.collectives.records import Group, GroupKey

GRACE_S = 6.0
"""Seconds after the first rank has told of a hang in which the others may: by then they have, or are soon silent ..."""
GRACE_SHARE = 0.25
"""... or this share of what the first one had waited: each rank's patience is ten of its own longest steps."""


class Stop(msgspec.Struct, frozen=True):
    """A collective that ranks wait in, and who of the group has not called it."""

    key: GroupKey
    group: Group
    call: Call
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    sequences: tuple[int, ...] = ()
    """All that its ranks wait in."""


class Scene:
    """All that is known, by rank."""

    def __init__(self, now_ns: int, ranks: Sequence[RankFacts], silent_after_s: float) -> None:
        self.facts = {each.rank: each for each in ranks}
        self.ended = {each.rank for each in ranks if each.has_ended}
        self.silent_after_s = silent_after_s
        self.quiet_s = self._quiet_s(now_ns)
        """Seconds since anything has come from a run that hung then: 0 while somebody speaks."""
        self.now_ns = now_ns - int(self.quiet_s * 1e9)
        """When there was last something to be known: the server's clock, or when the last rank fell silent."""
        late = {each.rank for each in ranks if self.silent_s(each) > silent_after_s} - self.ended
        self.silent = late if len(late) < len(ranks) else set()  # nobody speaks: it is not one rank's doing
        self.told = {each.rank for each in ranks if each.hang is not None} - self.ended - self.silent
        heard = {each.rank: each for each in ranks if each.rank not in self.ended}
        self.progress = {rank: {each.key: each for each in progress_of(facts.hang)} for rank, facts in heard.items()}

    def _quiet_s(self, now_ns: int) -> float:
        """All of a run that hung are killed together, and are no more to blame for it each than before."""
        left = [each for each in self.facts.values() if not each.has_ended]
        quiet_s = min((max(now_ns - each.last_seen_ns, 0) / 1e9 for each in left), default=0.0)
        return quiet_s if quiet_s > self.silent_after_s and any(each.hang is not None for each in left) else 0.0

    @property
    def left_behind(self) -> set[int]:
        """Silent ranks without which the others went on for long: not what those wait for now."""
        stalled_s = [self._stalled_s(each) for each in self.facts.values() if each.hang is not None]
        ended_s = [self.silent_s(self.facts[rank]) for rank in self.ended]
        since_s = max(stalled_s or ended_s, default=math.inf) + self.silent_after_s
        return {rank for rank in self.silent if self.silent_s(self.facts[rank]) > since_s}

    def silent_s(self, facts: RankFacts) -> float:
        return max(self.now_ns - facts.last_seen_ns, 0) / 1e9

    @property
    def since_s(self) -> float:
        """The longest that a rank has told of, until now; where none has, since the first silent one was heard."""
        told = [self._stalled_s(self.facts[rank]) for rank in self.told]
        return max(told or [self.silent_s(self.facts[rank]) for rank in self.silent], default=0.0)

    def _stalled_s(self, facts: RankFacts) -> float:
        seen_ns = self.now_ns if facts.hang_seen_ns is None else facts.hang_seen_ns
        return seconds_of((facts.hang or {}).get("stalled_s")) + max(self.now_ns - seen_ns, 0) / 1e9

    @property
    def _is_in_grace(self) -> bool:
        told = [self.facts[rank] for rank in self.told if self.facts[rank].hang_seen_ns is not None]
        if not told:
            return False
        since_s = max((self.now_ns - (each.hang_seen_ns or 0)) / 1e9 for each in told)
        return since_s < max(GRACE_S, GRACE_SHARE * (self.since_s - since_s))

    def enqueued(self, rank: int, key: GroupKey) -> int | None:
        """Sequence of the last collective that `rank` has called in a group; None: not known."""
        told = self.progress.get(rank, {}).get(key)
        called = [call.sequence for call in self._called(rank, key)]
        known = [*called, *([told.enqueued] if told else [])]
        return max(known, default=None)

    def completed(self, rank: int, key: GroupKey) -> int | None:
        """The same of the last that has ended."""
        told = self.progress.get(rank, {}).get(key)
        said = [told.completed] if told and told.completed is not None else []
        return max([*(call.sequence for call in self._called(rank, key)), *said], default=None)

    def waits_for(self, rank: int, key: GroupKey | None = None) -> Call | None:
        """What `rank` has waited for longest, in one group or in any."""
        if rank not in self.told:
            return None
        progress = [each for each in self.progress[rank].values() if key is None or each.key == key]
        waiting = [each.waiting[0] for each in progress if each.waiting]
        return max(waiting, key=lambda call: call.waited_s, default=None)

    def is_held(self, rank: int) -> bool:
        """Whether it waits for somebody else, who has not called what it is in. Else it is in something of its own."""
        if rank not in self.told:
            return False
        return any(
            self._lacks(other, progress.key, progress.waiting[0].sequence)
            for progress in self.progress[rank].values()
            if progress.waiting
            for other in progress.group.ranks
            if other != rank
        )

    def own_call(self, rank: int) -> Call | None:
        """What it is in that has not ended for it, though nobody else is missing; None where that is not known."""
        call = self.waits_for(rank)
        if call is None or self.is_held(rank):
            return None
        return next(
            (call for each in self.progress[rank].values() if call in each.waiting and each.completed is not None), None
        )

    def tells_of_ends(self, key: GroupKey) -> bool:
        """Whether any rank that waits in a group would know if that were over."""
        told = [self.progress[rank].get(key) for rank in self.told]
        return any(each is not None and each.waiting and each.completed is not None for each in told)

    def call_at(self, rank: int, key: GroupKey, sequence: int) -> Call | None:
        """What `rank` called at a sequence, ended or not."""
        told = self.progress.get(rank, {}).get(key)
        calls = [*self._called(rank, key), *(told.waiting if told else ())]
        return next((call for call in reversed(calls) if call.sequence == sequence), None)

    def stops(self) -> list[Stop]:
        """Every group in which a rank waits, with the most waiting ones first."""
        waiting: defaultdict[GroupKey, dict[int, Call]] = defaultdict(dict)
        groups: dict[GroupKey, Group] = {}
        for rank in sorted(self.told):
            for progress in self.progress[rank].values():
                groups.setdefault(progress.key, progress.group)
                if progress.waiting:
                    waiting[progress.key][rank] = progress.waiting[0]
        found = [self._stop(key, groups[key], calls) for key, calls in waiting.items()]
        return sorted(found, key=lambda stop: (-len(stop.waiting), stop.key))

    def _stop(self, key: GroupKey, group: Group, calls: Mapping[int, Call]) -> Stop:
        """Where several sequences are waited for: the first that somebody is missing from."""
        stops = []
        sequences = tuple(sorted({call.sequence for call in calls.values()}))
        for sequence in sequences:
            waiting = tuple(rank for rank, call in calls.items() if call.sequence == sequence)
            others = [rank for rank in group.ranks if rank not in waiting]
            missing = tuple(rank for rank in others if self._is_missing(rank, key, sequence))
            stops.append(Stop(key, group, calls[waiting[0]], waiting, missing, sequences))
        return next((stop for stop in stops if stop.missing), stops[0])

    def _is_missing(self, rank: int, key: GroupKey, sequence: int) -> bool:
        return self._lacks(rank, key, sequence) and not self.is_open(rank)

    def _lacks(self, rank: int, key: GroupKey, sequence: int) -> bool:
        enqueued = self.enqueued(rank, key)
        return enqueued is None or enqueued < sequence

    def is_open(self, rank: int) -> bool:
        """It lives, and has not told: its records show what has ended, not what it waits for."""
        gone = self.told | self.silent | self.ended
        return rank in self.facts and rank not in gone and self._is_in_grace

    def _called(self, rank: int, key: GroupKey) -> Sequence[Call]:
        return self.facts[rank].calls.get(key, ()) if rank in self.facts else ()
