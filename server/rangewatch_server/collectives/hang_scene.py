"""All that is known of the ranks of a run that does not advance: who speaks, who waits in what, who is not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from rangewatch_server.collectives.hang_facts import Call, RankFacts, progress_of
from rangewatch_server.collectives.records import Group, GroupKey

GRACE_S = 3.0
"""Seconds after the first rank has told of a hang in which the others may: before that, who has not is not missing."""


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
        self.now_ns = now_ns
        self.facts = {each.rank: each for each in ranks}
        self.ended = {each.rank for each in ranks if each.has_ended}
        late = {each.rank for each in ranks if self.silent_s(each) > silent_after_s} - self.ended
        self.silent = late if len(late) < len(ranks) else set()  # nobody speaks: it is not one rank's doing
        self.told = {each.rank for each in ranks if each.hang is not None} - self.ended - self.silent
        heard = {each.rank: each for each in ranks if each.rank not in self.ended}
        self.progress = {rank: {each.key: each for each in progress_of(facts.hang)} for rank, facts in heard.items()}

    def silent_s(self, facts: RankFacts) -> float:
        return max(self.now_ns - facts.last_seen_ns, 0) / 1e9

    @property
    def since_s(self) -> float:
        """The longest that a rank has told of, until now; where none has, since the first silent one was heard."""
        told = [self._stalled_s(self.facts[rank]) for rank in self.told]
        return max(told or [self.silent_s(self.facts[rank]) for rank in self.silent], default=0.0)

    def _stalled_s(self, facts: RankFacts) -> float:
        said = (facts.hang or {}).get("stalled_s")
        seen_ns = self.now_ns if facts.hang_seen_ns is None else facts.hang_seen_ns
        return (float(said) if isinstance(said, (int, float)) else 0.0) + max(self.now_ns - seen_ns, 0) / 1e9

    @property
    def _is_in_grace(self) -> bool:
        seen_ns = [seen for rank in self.told if (seen := self.facts[rank].hang_seen_ns) is not None]
        return bool(seen_ns) and self.now_ns - min(seen_ns) < GRACE_S * 1e9

    def enqueued(self, rank: int, key: GroupKey) -> int | None:
        """Sequence of the last collective that `rank` has called in a group; None: not known."""
        told = self.progress.get(rank, {}).get(key)
        called = [call.sequence for call in self._called(rank, key)]
        known = [*called, *([told.enqueued] if told else [])]
        return max(known, default=None)

    def completed(self, rank: int, key: GroupKey) -> int | None:
        """The same of the last that has ended."""
        told = self.progress.get(rank, {}).get(key)
        known = [*(call.sequence for call in self._called(rank, key)), *([told.completed] if told else [])]
        return max(known, default=None)

    def waits_for(self, rank: int, key: GroupKey | None = None) -> Call | None:
        """What `rank` has waited for longest, in one group or in any."""
        if rank not in self.told:
            return None
        progress = [each for each in self.progress[rank].values() if key is None or each.key == key]
        waiting = [each.waiting[0] for each in progress if each.waiting]
        return max(waiting, key=lambda call: call.waited_s, default=None)

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
        enqueued = self.enqueued(rank, key)
        return (enqueued is None or enqueued < sequence) and not self.is_open(rank)

    def is_open(self, rank: int) -> bool:
        """It lives, and has not told: its records show what has ended, not what it waits for."""
        gone = self.told | self.silent | self.ended
        return rank in self.facts and rank not in gone and self._is_in_grace

    def _called(self, rank: int, key: GroupKey) -> Sequence[Call]:
        return self.facts[rank].calls.get(key, ()) if rank in self.facts else ()
