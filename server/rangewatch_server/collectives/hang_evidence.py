"""What is known of each rank when a run does not advance: as its agent has reported, and as its records show.

All that is known of the ranks of a run that does not advance: who speaks, who waits in what, who is not there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np

from rangewatch.wire.events import CodeLine, Hang, WaitingCall
from rangewatch_server.collectives.records import Chunk, Group, GroupKey, Names, group_key, newest_process, rank_records

KEPT_CALLS = 16
"""Newest calls of a rank and group that are compared with what others wait for."""

_DATA_LOADERS = (
    "torch/utils/data/dataloader.py", "torch/utils/data/_utils/fetch.py", "/torchdata/", "/webdataset/",
    "/nvidia/dali/", "/streaming/base/", "/datasets/iterable_dataset.py", "/datasets/arrow_dataset.py", "/ffcv/loader/",
)  # fmt: skip


class Call(msgspec.Struct, frozen=True):
    """One collective as a rank called it. `waited_s`: how long it had not ended when that was reported."""

    sequence: int
    op: str
    bytes: float
    dtype: str
    waited_s: float = 0.0


class Progress(msgspec.Struct, frozen=True):
    """How far one rank is in one group. `waiting`: called and not ended, first one first. `completed` None: nobody
    informs that rank of ends, and what it says to wait in may be over."""

    key: GroupKey
    group: Group
    enqueued: int
    completed: int | None
    waiting: tuple[Call, ...] = ()


class RankEvidence(msgspec.Struct, frozen=True):
    """One rank. Times are of the server's clock.

    `last_seen_ns`: its last message came. `has_ended`: it has said that it ends. `hang`: its newest report that
    it hangs, None when there is none or it has gone on since; `hang_seen_ns`: when that came. `stacks`: newest text
    of its stacks, from itself or from another rank of its host. `calls`: see `recent_calls`.
    """

    rank: int
    last_seen_ns: int
    last_step: int = -1
    has_ended: bool = False
    hang: Hang | None = None
    hang_seen_ns: int | None = None
    stacks: str = ""
    calls: Mapping[GroupKey, Sequence[Call]] = {}


def recent_calls(chunks: Sequence[Chunk]) -> dict[GroupKey, tuple[Call, ...]]:
    """The newest calls of one rank in each group, in order of time, from its records: those that have ended.

    Of its newest process only: in the one before it the same sequences were other calls.
    """
    names = Names()
    records = rank_records(chunks, names)
    records = records.take(records.incarnation == newest_process(chunks))
    by_group: dict[GroupKey, tuple[Call, ...]] = {}
    for number, key in enumerate(names.group_keys):
        newest = records.take(np.flatnonzero(records.group == number)[-KEPT_CALLS:])
        rows = zip(*(getattr(newest, name).tolist() for name in ("sequence", "op", "bytes", "dtype")), strict=True)
        by_group[key] = tuple(
            Call(sequence, names.ops[op], size, names.dtypes[dtype] if dtype >= 0 else "")
            for sequence, op, size, dtype in rows
        )
    return by_group


def progress_of(hang: Hang | None) -> Iterator[Progress]:
    """How far a rank that reports a hang is in each group."""
    for each in hang.groups if hang is not None else ():
        key = group_key(msgspec.structs.asdict(each))
        group = Group(key[0], key[1], tuple(sorted(each.ranks)), each.desc or "")
        waiting = sorted(map(_call, each.waiting), key=lambda call: call.sequence)
        yield Progress(key, group, each.enqueued, each.completed, tuple(waiting))


def line_of(hang: Hang | None) -> CodeLine | None:
    """Where the training thread of a rank that reports a hang was."""
    line = None if hang is None else hang.line or hang.where or None
    return line if line is not None and line.file else None


def is_in_data_loader(stacks: str) -> bool:
    """Whether the main thread, which faulthandler writes last, is inside a data loader."""
    main = stacks.replace("\\", "/").rsplit("hread 0x", 1)[-1]
    return any(part in main for part in _DATA_LOADERS)


def _call(waiting: WaitingCall) -> Call:
    size = math.nan if waiting.bytes is None else waiting.bytes
    return Call(waiting.sequence, waiting.op, size, waiting.dtype or "", waiting.waited_s)


GRACE_S = 6.0
"""Seconds after the first rank has reported a hang in which the others may: by then they have, or are soon silent"""
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


class HangEvidence:
    """All that is known, by rank."""

    def __init__(self, now_ns: int, ranks: Sequence[RankEvidence], silent_after_s: float) -> None:
        self.by_rank = {each.rank: each for each in ranks}
        self.ended = {each.rank for each in ranks if each.has_ended}
        self.silent_after_s = silent_after_s
        self.quiet_s = self._quiet_s(now_ns)
        """Seconds since anything has come from a run that hung then: 0 while somebody speaks."""
        self.now_ns = now_ns - int(self.quiet_s * 1e9)
        """When there was last something to be known: the server's clock, or when the last rank fell silent."""
        late = {each.rank for each in ranks if self.silent_s(each) > silent_after_s} - self.ended
        self.silent = late if len(late) < len(ranks) else set()  # nobody speaks: it is not one rank's doing
        self.reported = {each.rank for each in ranks if each.hang is not None} - self.ended - self.silent
        self.unknown = set(self.by_rank) - self.reported - self.silent - self.ended
        """Ranks that live and have not reported: their records show what has ended, not what they wait for."""
        heard = {each.rank: each for each in ranks if each.rank not in self.ended}
        self.progress = {rank: {each.key: each for each in progress_of(report.hang)} for rank, report in heard.items()}
        members = {rank for known in self.progress.values() for each in known.values() for rank in each.group.ranks}
        self.unheard = members - set(self.by_rank)
        """Ranks of the groups from which nothing has come ever, as where no agent is attached there."""
        self.unknown |= self.unheard

    def _quiet_s(self, now_ns: int) -> float:
        """All of a run that hung are killed together, and are no more to blame for it each than before."""
        left = [each for each in self.by_rank.values() if not each.has_ended]
        quiet_s = min((max(now_ns - each.last_seen_ns, 0) / 1e9 for each in left), default=0.0)
        return quiet_s if quiet_s > self.silent_after_s and any(each.hang is not None for each in left) else 0.0

    @property
    def left_behind(self) -> set[int]:
        """Silent ranks without which the others went on for long: not what those wait for now."""
        stalled_s = [self._stalled_s(each) for each in self.by_rank.values() if each.hang is not None]
        ended_s = [self.silent_s(self.by_rank[rank]) for rank in self.ended]
        since_s = max(stalled_s or ended_s, default=math.inf) + self.silent_after_s
        return {rank for rank in self.silent if self.silent_s(self.by_rank[rank]) > since_s}

    def silent_s(self, report: RankEvidence) -> float:
        return max(self.now_ns - report.last_seen_ns, 0) / 1e9

    @property
    def since_s(self) -> float:
        """The longest that a rank has reported, until now; where none has, since the first silent one was heard."""
        reported = [self._stalled_s(self.by_rank[rank]) for rank in self.reported]
        return max(reported or [self.silent_s(self.by_rank[rank]) for rank in self.silent], default=0.0)

    def _stalled_s(self, report: RankEvidence) -> float:
        seen_ns = self.now_ns if report.hang_seen_ns is None else report.hang_seen_ns
        return (report.hang.stalled_s if report.hang is not None else 0.0) + max(self.now_ns - seen_ns, 0) / 1e9

    @cached_property
    def is_in_grace(self) -> bool:
        """Whether ranks that have not reported may be about to."""
        reported = [self.by_rank[rank] for rank in self.reported if self.by_rank[rank].hang_seen_ns is not None]
        if not reported:
            return False
        since_s = max((self.now_ns - (each.hang_seen_ns or 0)) / 1e9 for each in reported)
        return since_s < max(GRACE_S, GRACE_SHARE * (self.since_s - since_s))

    def enqueued(self, rank: int, key: GroupKey) -> int | None:
        """Sequence of the last collective that `rank` has called in a group; None: not known."""
        reported = self.progress.get(rank, {}).get(key)
        called = [call.sequence for call in self._called(rank, key)]
        known = [*called, *([reported.enqueued] if reported else [])]
        return max(known, default=None)

    def completed(self, rank: int, key: GroupKey) -> int | None:
        """The same of the last that has ended."""
        reported = self.progress.get(rank, {}).get(key)
        last = [reported.completed] if reported and reported.completed is not None else []
        return max([*(call.sequence for call in self._called(rank, key)), *last], default=None)

    def waits_for(self, rank: int, key: GroupKey | None = None) -> Call | None:
        """What `rank` has waited for longest, in one group or in any."""
        if rank not in self.reported:
            return None
        progress = [each for each in self.progress[rank].values() if key is None or each.key == key]
        waiting = [each.waiting[0] for each in progress if each.waiting]
        return max(waiting, key=lambda call: call.waited_s, default=None)

    def is_held(self, rank: int) -> bool:
        """Whether it waits for somebody else, who has not called what it is in. Else it is in something of its own."""
        if rank not in self.reported:
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

    def reports_ends(self, key: GroupKey) -> bool:
        """Whether any rank that waits in a group would know if that were over."""
        reported = [self.progress[rank].get(key) for rank in self.reported]
        return any(each is not None and each.waiting and each.completed is not None for each in reported)

    def call_at(self, rank: int, key: GroupKey, sequence: int) -> Call | None:
        """What `rank` called at a sequence, ended or not."""
        reported = self.progress.get(rank, {}).get(key)
        calls = [*self._called(rank, key), *(reported.waiting if reported else ())]
        return next((call for call in reversed(calls) if call.sequence == sequence), None)

    def stops(self) -> list[Stop]:
        """Every group in which a rank waits, with the most waiting ones first."""
        waiting: defaultdict[GroupKey, dict[int, Call]] = defaultdict(dict)
        groups: dict[GroupKey, Group] = {}
        for rank in sorted(self.reported):
            for progress in self.progress[rank].values():
                groups.setdefault(progress.key, progress.group)
                if progress.waiting:
                    waiting[progress.key][rank] = progress.waiting[0]
        stops = [self._stop(key, groups[key], calls) for key, calls in waiting.items()]
        return sorted(stops, key=lambda stop: (-len(stop.waiting), stop.key))

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

    def lacking(self, stop: Stop, ranks: Collection[int]) -> set[int]:
        """Those of `ranks` that have to call what `stop` waits in, and are not known to have."""
        return {rank for rank in stop.group.ranks if rank in ranks and self._lacks(rank, stop.key, stop.call.sequence)}

    def _is_missing(self, rank: int, key: GroupKey, sequence: int) -> bool:
        return self._lacks(rank, key, sequence) and not self.is_open(rank)

    def _lacks(self, rank: int, key: GroupKey, sequence: int) -> bool:
        enqueued = self.enqueued(rank, key)
        return enqueued is None or enqueued < sequence

    def is_open(self, rank: int) -> bool:
        """Whether what it waits for is not known yet. Of one alone it is, once the others have given it time: it is
        the only one that can be missing. Not of one that has never said anything: it need not have anybody to say it.
        """
        return rank in self.unheard or (rank in self.unknown and (self.is_in_grace or len(self.unknown) > 1))

    def _called(self, rank: int, key: GroupKey) -> Sequence[Call]:
        return self.by_rank[rank].calls.get(key, ()) if rank in self.by_rank else ()
