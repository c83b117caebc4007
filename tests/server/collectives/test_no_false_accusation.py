"""What is late to be told, unknown, or of an older process accuses nobody: neither a rank nor the communication."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.collectives.location import PhaseSeries
from rangewatch_server.collectives.matching import Matched, match
from rangewatch_server.collectives.straggler import Judgement, judge
from rangewatch_server.collectives.straggling_host import judge_hosts
from rangewatch_server.collectives.waits import waits_of
from tests.server.collectives.conftest import Seeds
from tests.server.collectives.traces import PLACES, Chunk, Training, chunk, group_about, row

PER_HOST = 4


class SeveralLate(Training):
    """`late_rank` is a tuple of ranks; the ranks of a host have one clock."""

    late_rank: Any

    def _late(self, place: str, step: int) -> Any:
        late_s = np.zeros(self.ranks)
        if place and place == self.place and step >= self.late_from:
            for rank in self.late_rank:
                late_s[rank] = self.late_s * (1 + 0.02 * self.random.standard_normal())
        self.now_s += late_s
        return late_s

    def matched(self) -> Matched:
        chunks = self.chunks()
        for rank, parts in chunks.items():
            ahead_ns = int((self.offset_s[rank] - 60 * (rank // PER_HOST)) * 1e9)
            for part in parts:
                part.times_ns = part.times_ns - ahead_ns
        return match(chunks)


def judged(chunks: dict[int, list[Chunk]], phases: dict[int, PhaseSeries] | None = None) -> Judgement:
    return judge(waits_of(match(chunks)), phases)


def hosts_of(ranks: int) -> dict[int, str]:
    return {rank: f"node{rank // PER_HOST}" for rank in range(ranks)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("late", [(4, 5, 6, 7), (4, 6)])
def test_late_ranks_of_one_host_are_that_hosts(place: str, late: tuple[int, ...], seeds: Seeds) -> None:
    for seed in seeds(5):
        training = SeveralLate(seed, 8, place=place, late_rank=late)  # type: ignore[arg-type]
        matched = training.matched()
        waits = waits_of(matched)
        assert judge(waits, training.series()).verdict is None, seed
        judgement = judge_hosts(matched, waits, hosts_of(8), training.series())
        assert judgement is not None and judgement.verdict is not None, seed
        verdict = judgement.verdict
        assert (verdict.rank, verdict.host, verdict.ranks, verdict.where) == (None, "node1", late, place), seed
        assert verdict.cost_s == pytest.approx(0.03, abs=0.01) and "for host node1, ranks 4" in verdict.sentence
        assert verdict.evidence["next_host"] == "node0" and "next_rank" not in verdict.evidence


def test_late_ranks_of_two_hosts_are_nobodys_but_told_of(seeds: Seeds) -> None:
    for seed in seeds(8):
        training = SeveralLate(seed, 8, place="before backward", late_rank=(1, 6))  # type: ignore[arg-type]
        matched = training.matched()
        waits = waits_of(matched)
        judgement = judge(waits, training.series())
        assert judgement.verdict is None and judge_hosts(matched, waits, hosts_of(8), training.series()) is None, seed
        assert " for several: rank 1 and rank 6." in judgement.reason, seed


@pytest.mark.parametrize("hosts", [hosts_of(8), {rank: "big" if rank else "small" for rank in range(8)}, {}])
def test_no_host_is_named_where_nothing_is_planted(hosts: dict[int, str], seeds: Seeds) -> None:
    """The host with seven of eight ranks has the last one seven times of eight: that is chance."""
    for seed in seeds(12):
        training = SeveralLate(seed, 8, jitter=0.15, spike=0.3, steps=50, late_rank=())  # type: ignore[arg-type]
        matched = training.matched()
        assert judge_hosts(matched, waits_of(matched), hosts, training.series()) is None, seed


def test_a_late_rank_that_is_not_measured_is_not_slow_communication(seeds: Seeds) -> None:
    """All that is known waits for it from step 35 on, and takes fifteen times as long as before."""
    for seed in seeds(5):
        training = Training(seed, steps=60, place="data loader", late_from=35)
        chunks = training.chunks(60)
        whole = judged(chunks, training.series()).verdict
        assert whole is not None and whole.rank == 2
        for part in chunks[2]:
            part.columns["duration_s"][:] = np.nan
        judgement = judged(chunks, training.series())
        assert judgement.verdict is None and "Of rank 2 nothing is known" in judgement.reason
        del chunks[2]
        assert judged(chunks, training.series()).verdict is None


def test_records_that_have_not_come_yet_are_not_slow_communication() -> None:
    training = Training(0, steps=60, place="data loader", late_from=35)
    chunks = training.chunks(60)
    chunks[2] = [part for part in chunks[2] if part.columns["step"].max() < 36]
    assert judged(chunks, training.series()).verdict is None


def test_a_straggler_is_named_while_ranks_report_at_different_times() -> None:
    """Of many ranks each sends every ten seconds: of the newest hundred steps some ranks' records are there."""
    training = Training(0, 32, steps=200, place="data loader")
    chunks = training.chunks(200)
    random = np.random.default_rng(0)
    for rank, parts in chunks.items():
        until = 200 - random.integers(0, 100)
        chunks[rank] = [part for part in parts if part.columns["step"].max() < until]
    verdict = judged(chunks).verdict
    assert verdict is not None and verdict.rank == 2


def test_a_new_process_is_not_matched_with_another_ranks_old_one() -> None:
    """All ranks have restarted, with a larger model; the records of rank 3's new process have not come yet."""
    before, after = Training(1, steps=30).chunks(), Training(2, steps=20).chunks()
    chunks: dict[int, list[Any]] = {}
    for rank, parts in after.items():
        for part in parts:
            part.incarnation = 1
            part.columns["step"] += 25
            part.columns["bytes"] *= 2
            part.times_ns = part.times_ns - 10**13
        chunks[rank] = before[rank] + (parts if rank != 3 else [])
    chunks[3].append(Chunk(3, "", np.zeros(0, np.int64), {}, {}, 1))
    matched = match(chunks)
    assert matched.desyncs == []
    assert [(block.age, block.ranks.tolist()) for block in matched.blocks] == [(0, [0, 1, 2]), (1, [0, 1, 2, 3])]


def test_a_group_of_older_processes_alone_is_the_newest_there_is() -> None:
    """Of steps before all ranks restarted."""
    chunks: dict[int, list[Any]] = dict(Training(1, steps=12).chunks())
    for rank, parts in chunks.items():
        parts.append(Chunk(rank, "", np.zeros(0, np.int64), {}, {}, 1))
    assert [block.age for block in match(chunks).blocks] == [0]


def test_a_part_of_coalesced_operations_that_was_lost_is_no_mismatch() -> None:
    group = group_about("0", range(3))

    def parts(count: int) -> list[dict[str, Any]]:
        return [row(5, group=group, bytes=64.0, time_ns=10**18 + part) for part in range(count)]

    by_rank = {rank: [chunk(rank, parts(count))] for rank, count in enumerate((3, 3, 2))}
    assert match(by_rank).desyncs == []
    other = {**by_rank, 2: [chunk(2, [each | {"op": "broadcast"} for each in parts(3)])]}
    assert [desync.odd_ranks for desync in match(other).desyncs] == [(2,)]


def test_a_bucket_with_an_endless_number_is_left_out() -> None:
    one = chunk(0, [row(1)])
    one.about["buckets"] = {"9" * 5000: ["x"], "3": ["layer.weight"]}
    assert match({0: [one]}).buckets == {3: ["layer.weight"]}


def test_of_a_rank_without_durations_nothing_is_known() -> None:
    rows = [row(n, 0.031, step=0) for n in (1, 2)]
    unknown = [each | {"duration_s": np.nan} for each in rows]
    group = group_about("0", range(3))
    by_rank = {
        rank: [chunk(rank, [each | {"group": group} for each in mine])]
        for rank, mine in enumerate((rows, [each | {"duration_s": 0.001} for each in rows], unknown))
    }
    waits = waits_of(match(by_rank))
    assert waits.known_count.tolist() == [[2], [2], [0]]
