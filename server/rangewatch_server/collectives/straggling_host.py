"""Whether all ranks of one host keep the others waiting: its network, its disk, its processor, its cooling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np

from rangewatch_server.collectives.location import PhaseSeries
from rangewatch_server.collectives.matching import Block, Matched
from rangewatch_server.collectives.records import UNKNOWN, Array
from rangewatch_server.collectives.straggler import LATE_SHARE, MIN_COVERAGE, Judgement, Verdict, judge
from rangewatch_server.collectives.waits import Waits, waits_of
from rangewatch_server.core.text import ranks_text


def judge_hosts(
    matched: Matched, waits: Waits, hosts: Mapping[int, str], phases: Mapping[int, PhaseSeries] | None = None
) -> Judgement | None:
    """See `Hosts.judge`. `hosts`: rank -> name; a rank without one is a host of its own."""
    return Hosts(matched, waits, hosts).judge(phases)


class Hosts:
    """The hosts of a run as if each were one rank: in a collective for as long as the last of its ranks."""

    def __init__(self, matched: Matched, waits: Waits, hosts: Mapping[int, str]) -> None:
        self._matched, self._waits = matched, waits
        ranks = waits.ranks.tolist()
        self._names = sorted({_name(rank, hosts) for rank in ranks})
        places = {name: place for place, name in enumerate(self._names)}
        self._number = {rank: places[_name(rank, hosts)] for rank in ranks}
        self._of_host = np.array([self._number[rank] for rank in ranks], np.int64)

    @cached_property
    def _waits_of_hosts(self) -> Waits:
        return waits_of(by_host(self._matched, self._number))

    def judge(self, phases: Mapping[int, PhaseSeries] | None = None) -> Judgement | None:
        """The verdict on a host with several ranks; None where none stands out, or less is known than a verdict needs.

        For when no single rank stands out: of several late ranks now this one is last and now that one, or none
        clearly. Hosts are judged as ranks are.
        """
        names, waits = self._names, self._waits
        sizes = np.bincount(self._of_host, minlength=len(names))
        if len(names) < 2 or sizes.max(initial=0) < 2 or waits.known.sum() < MIN_COVERAGE * waits.expected.sum():
            return None
        host_verdict = judge(
            self._waits_of_hosts, _slowest(phases or {}, self._number), lambda host: f"host {names[host]}",
            chances=sizes / sizes.sum(),
        ).verdict  # fmt: skip
        if host_verdict is None or host_verdict.rank is None or sizes[host_verdict.rank] < 2:
            return None
        verdict = _of_host(host_verdict, waits, self._of_host, names)
        return Judgement(verdict, verdict.sentence)


def _name(rank: int, hosts: Mapping[int, str]) -> str:
    return hosts.get(rank) or f"of rank {rank}"


def _of_host(host_verdict: Verdict, waits: Waits, of_host: Array, names: list[str]) -> Verdict:
    assert host_verdict.rank is not None
    late = _late(
        waits, of_host == host_verdict.rank, host_verdict.evidence["first_step"], host_verdict.evidence["last_step"]
    )
    name = names[host_verdict.rank]
    following = host_verdict.evidence["next_rank"]
    evidence = {key: value for key, value in host_verdict.evidence.items() if key not in {"next_rank", "next_cost_s"}}
    evidence |= {
        "next_host": None if following is None else names[following],
        "next_cost_s": host_verdict.evidence["next_cost_s"],
    }
    sentence = host_verdict.sentence.replace(f"for host {name} (", f"for host {name}, {ranks_text(late)} (", 1)
    return msgspec.structs.replace(host_verdict, rank=None, host=name, ranks=late, sentence=sentence, evidence=evidence)


def _late(waits: Waits, is_its: Array, first_step: int, last_step: int) -> tuple[int, ...]:
    """Its ranks that wait for others less than the other hosts' ranks do."""
    steps = (waits.steps >= first_step) & (waits.steps <= last_step)
    wait_s = waits.wait_s[:, steps].mean(axis=1)
    is_known = waits.known_count[:, steps].any(axis=1)
    usual_s = float(np.median(wait_s[~is_its & is_known])) if (~is_its & is_known).any() else 0.0
    late = waits.ranks[is_its & is_known & (wait_s < LATE_SHARE * usual_s)]
    return tuple((late if len(late) else waits.ranks[is_its]).tolist())


def by_host(matched: Matched, number: Mapping[int, int]) -> Matched:
    """The same collectives with hosts in place of ranks. `number`: rank -> its host's."""
    hosts = np.unique(np.array(list(number.values()), np.int64))
    return msgspec.structs.replace(matched, blocks=[_block(block, number) for block in matched.blocks], ranks=hosts)


def _block(block: Block, number: Mapping[int, int]) -> Block:
    of_row = np.array([number[rank] for rank in block.ranks.tolist()], np.int64)
    hosts = np.unique(of_row)
    shape = (len(hosts), len(block.sequence))
    times_ns, duration_s = np.empty(shape, np.int64), np.empty(shape)
    for place, host in enumerate(hosts.tolist()):
        rows = np.flatnonzero(of_row == host)
        times_ns[place], duration_s[place] = _last_of(block, rows)
    members = tuple(sorted({number[rank] for rank in block.group.ranks if rank in number}))
    return msgspec.structs.replace(
        block,
        group=msgspec.structs.replace(block.group, ranks=members),
        ranks=hosts,
        incarnation=np.array([block.incarnation[of_row == host].max() for host in hosts.tolist()], np.int64),
        times_ns=times_ns,
        duration_s=duration_s,
    )


def _last_of(block: Block, rows: Array) -> tuple[Array, Array]:
    """When the last of a host's ranks came, by the host's clock, and for how long it was in each collective."""
    if len(rows) == 1:
        return block.times_ns[rows[0]], block.duration_s[rows[0]]
    filled = np.where(np.isnan(block.duration_s[rows]), np.inf, block.duration_s[rows])
    last = filled.argmin(axis=0)[None]
    duration_s = np.take_along_axis(filled, last, 0)[0]
    times_ns = np.take_along_axis(block.times_ns[rows], last, 0)[0]
    is_known = np.isfinite(duration_s)
    return np.where(is_known, times_ns, UNKNOWN), np.where(is_known, duration_s, np.nan)


def _slowest(phases: Mapping[int, PhaseSeries], number: Mapping[int, int]) -> dict[int, PhaseSeries]:
    """Of each host the longest of each phase over its ranks, step by step."""
    slowest: dict[int, PhaseSeries] = {}
    for rank, series in phases.items():
        if rank not in number or not len(series.steps):
            continue
        host = number[rank]
        before = slowest.get(host)
        if before is None or not np.array_equal(before.steps, series.steps):
            slowest.setdefault(host, series)
            continue
        both = {
            name: np.fmax(before.seconds[name], series.seconds[name])
            for name in before.seconds.keys() & series.seconds.keys()
        }
        slowest[host] = PhaseSeries(series.steps, both)
    return slowest
