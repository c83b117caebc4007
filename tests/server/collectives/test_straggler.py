"""The planted delay is found, at its rank and place, whatever the seed; where nothing is planted nobody is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.collectives.location import PhaseSeries
from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.straggler import Judgement, judge
from rangewatch_server.collectives.waits import waits_of
from tests.server.collectives.conftest import Seeds
from tests.server.collectives.traces import PLACES, Chunk, Training

SLOW = "non-communication slow"


def judged(training: Training, phases: dict[int, PhaseSeries] | None = None, chunks: Any = None) -> Judgement:
    return judge(waits_of(match(training.chunks() if chunks is None else chunks)), phases)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("exposed", "tells_async"), [(True, True), (False, True), (True, False)])
def test_a_planted_delay_is_found_every_time(place: str, exposed: bool, tells_async: bool, seeds: Seeds) -> None:
    for seed in seeds(20):
        training = Training(seed, place=place, tells_async=tells_async)
        verdict = judged(training, training.series(exposed=exposed)).verdict
        assert verdict is not None, seed
        assert (verdict.kind, verdict.rank, verdict.where) == (SLOW, 2, place), seed
        assert verdict.cost_s == pytest.approx(0.03, abs=0.009)
        assert verdict.since_step <= 4 and verdict.share > 0.8
        assert "rank 2" in verdict.sentence and " ms a step" in verdict.sentence


@pytest.mark.parametrize(("ranks", "tensor_parallel"), [(4, 1), (8, 2), (8, 1)])
def test_nobody_is_named_where_nothing_is_planted(ranks: int, tensor_parallel: int, seeds: Seeds) -> None:
    for seed in seeds(20):
        training = Training(seed, ranks=ranks, tensor_parallel=tensor_parallel)
        for phases in (training.series(), None):
            judgement = judged(training, phases)
            assert judgement.verdict is None, (seed, judgement.reason)
            assert judgement.reason.startswith("No straggler")


@pytest.mark.parametrize(("ranks", "tensor_parallel", "count"), [(8, 1, 10), (8, 2, 10), (64, 1, 2), (64, 8, 2)])
@pytest.mark.parametrize("place", [*PLACES, None])
def test_with_many_ranks_and_two_groups(
    ranks: int, tensor_parallel: int, count: int, place: str | None, seeds: Seeds
) -> None:
    for seed in seeds(count):
        training = Training(seed, ranks, place=place, tensor_parallel=tensor_parallel, steps=20)
        verdict = judged(training, training.series()).verdict
        assert (verdict and (verdict.rank, verdict.where)) == (place and (2, place)), seed


def test_noisier_hosts_do_not_make_a_verdict(seeds: Seeds) -> None:
    for seed in seeds(60):
        training = Training(seed, jitter=0.15, spike=0.3, steps=60)
        assert judged(training, training.series()).verdict is None, seed


def without_some(chunks: dict[int, list[Chunk]], seed: int, share: float) -> dict[int, list[Chunk]]:
    random = np.random.default_rng(seed)
    for part in (part for parts in chunks.values() for part in parts):
        kept = random.random(len(part.times_ns)) >= share
        part.times_ns = part.times_ns[kept]
        part.columns = {name: values[kept] for name, values in part.columns.items()}
    return chunks


@pytest.mark.parametrize("place", [*PLACES, None])
def test_missing_records_change_nothing(place: str | None, seeds: Seeds) -> None:
    for seed in seeds(10):
        training = Training(seed, place=place)
        chunks = without_some(training.chunks(), seed, 0.2)
        del chunks[3]
        judgement = judged(training, training.series(), chunks)
        assert (judgement.verdict and judgement.verdict.rank) == (place and 2), (seed, judgement.reason)


def test_with_too_few_durations_nothing_is_said() -> None:
    training = Training(0, place="data loader")
    chunks = training.chunks()
    for rank in (0, 3):
        for part in chunks[rank]:
            part.columns["duration_s"][:] = np.nan
    assert judged(training, None, chunks).verdict is not None  # half of them
    for part in chunks[1]:
        part.columns["duration_s"][::2] = np.nan
    assert judged(training, None, chunks).reason == "Only 37% of the collectives' durations are known."


def test_without_phases_the_rank_is_found_and_the_place_as_far_as_it_can_be() -> None:
    for place, where in (("inside backward", "inside backward"), ("data loader", "unknown")):
        verdict = judged(Training(1, place=place)).verdict
        assert verdict is not None and (verdict.rank, verdict.where) == (2, where)
    assert verdict is not None and "first collective of each step" in verdict.sentence
    assert verdict.evidence["first_collective_share"] > 0.9
    unnumbered = judged(Training(1, place="inside backward", bucketed=False)).verdict
    assert unnumbered is not None and unnumbered.where == "inside backward"


def test_a_step_of_phases_that_nobody_knows_is_no_phase() -> None:
    training = Training(2, place="data loader")
    phases = training.series()
    for series in phases.values():
        series.seconds["data_wait_s"][:] = np.nan
    verdict = judged(training, phases).verdict
    assert verdict is not None and (verdict.rank, verdict.where) == (2, "unknown")
    assert "data_wait_s" not in verdict.evidence["phase_excess_s"]


def test_it_is_said_since_when(seeds: Seeds) -> None:
    for seed in seeds(10):
        training = Training(seed, steps=60, place="before backward", late_from=33)
        verdict = judged(training, training.series()).verdict
        assert verdict is not None and abs(verdict.since_step - 33) <= 1, seed


def test_what_is_over_is_not_said() -> None:
    """The rank was late for 30 steps, and has not been for 30."""
    healthy = Training(3, steps=30)
    late = Training(3, steps=30, place="data loader").chunks()
    for rank, parts in healthy.chunks().items():
        for part in parts:
            part.columns["step"] += 30
            part.columns["sequence"] += 150
            part.times_ns = part.times_ns + 10**11
        late[rank] = late[rank] + parts
    assert judged(healthy, None, late).verdict is None


@pytest.mark.parametrize(("steps", "is_enough"), [(10, False), (11, True)])
def test_an_incident_is_no_verdict(steps: int, is_enough: bool) -> None:
    """Of five collectives a step 50 are needed, and the newest step is not looked at."""
    judgement = judged(Training(0, steps=steps, place="data loader"))
    assert (judgement.verdict is not None) is is_enough, judgement.reason


def test_a_rank_that_is_late_at_times_is_no_straggler() -> None:
    training = Training(5, steps=60, place="data loader")
    healthy = Training(5, steps=60)
    rare = {}
    for rank, parts in training.chunks(1).items():
        late, usual = parts[0], healthy.chunks(1)[rank][0]
        is_late = late.columns["step"] % 4 == 0
        usual.columns["duration_s"] = np.where(is_late, late.columns["duration_s"], usual.columns["duration_s"])
        rare[rank] = [usual]
    judgement = judged(training, None, rare)
    assert judgement.verdict is None
    assert judgement.reason.startswith("No lasting straggler: rank 2 ")


def test_a_cost_below_five_percent_of_the_step_is_none() -> None:
    judgement = judged(Training(1, place="data loader", late_s=0.003, jitter=0.001, spike=0))
    assert judgement.verdict is None
    assert "rank 2 costs the others most" in judgement.reason


def test_an_optimizer_or_own_communication_may_be_the_place() -> None:
    for phase, kind, where in (
        ("optimizer_s", SLOW, "optimizer"),
        ("forward_s", SLOW, "forward"),
        ("exposed_comm_s", "communication slow", "communication"),
    ):
        training = Training(1, place="before backward")
        phases = training.series()
        phases[2].seconds["other_s"][:] -= 0.03
        phases[2].seconds[phase][:] += 0.09 if phase == "exposed_comm_s" else 0.03
        verdict = judged(training, phases).verdict
        assert verdict is not None and (verdict.rank, verdict.kind, verdict.where) == (2, kind, where)


def test_communication_that_has_become_slow_is_nobodys(seeds: Seeds) -> None:
    for seed in seeds(10):
        training = Training(seed, steps=60, slow_from=35)
        verdict = judged(training, training.series()).verdict
        assert verdict is not None, seed
        assert (verdict.kind, verdict.rank, verdict.where) == ("communication slow", None, "communication")
        assert verdict.since_step == 35 and verdict.evidence["ratio"] > 5
        assert 0.01 < verdict.cost_s < 0.08
        assert "all_reduce of group world" in verdict.sentence


def test_slow_communication_that_costs_no_time_is_no_verdict() -> None:
    """Eight times as long, and the step as long as ever: hidden behind the backward."""
    training = Training(1, steps=60, slow_from=35)
    usual = Training(1, steps=60).chunks(1)
    chunks = training.chunks(1)
    for rank, (part,) in chunks.items():
        part.times_ns = usual[rank][0].times_ns
    assert judged(training, None, chunks).verdict is None


@pytest.mark.parametrize("place", [*PLACES, None])
def test_after_a_restart_of_all_ranks(place: str | None) -> None:
    """From a checkpoint at step 20, on other hosts: steps come twice, sequences begin anew, clocks go back."""
    before, after = Training(1, steps=30), Training(2, steps=40, place=place)
    chunks = {}
    for rank, parts in before.chunks().items():
        newer = after.chunks()[rank]
        for part in newer:
            part.incarnation = 1
            part.columns["step"] += 20
            part.times_ns = part.times_ns - 10**13
        chunks[rank] = parts + newer
    judgement = judged(after, None, chunks)
    assert (judgement.verdict and judgement.verdict.rank) == (place and 2), judgement.reason


def test_of_two_ranks_the_late_one_is_named(seeds: Seeds) -> None:
    for seed in seeds(10):
        training = Training(seed, ranks=2, late_rank=1, place="inside backward")
        verdict = judged(training, training.series()).verdict
        assert verdict is not None and (verdict.rank, verdict.where) == (1, "inside backward"), seed


def test_nothing_to_judge() -> None:
    assert judge(waits_of(match({}))).verdict is None
    assert "are known on two ranks" in judge(waits_of(match({}))).reason


def hurried(chunks: dict[int, list[Chunk]]) -> dict[int, list[Chunk]]:
    """Everything in a quarter of the time."""
    for parts in chunks.values():
        began_ns = parts[0].times_ns[0]
        for each in parts:
            each.times_ns = began_ns + (each.times_ns - began_ns) // 4
            each.columns["duration_s"] = each.columns["duration_s"] / 4
    return chunks


@pytest.mark.parametrize(("late_from", "rank"), [(68, None), (0, 2)])
def test_some_tenths_of_a_second_are_no_continuity(late_from: int, rank: int | None, seeds: Seeds) -> None:
    """Seen on a busy host: its scheduler kept one of four ranks from its core for 16 steps of 25 ms."""
    for seed in seeds(10):
        training = Training(seed, steps=80, place="before backward", late_from=late_from)
        judgement = judged(training, None, hurried(training.chunks()))
        assert (judgement.verdict and judgement.verdict.rank) == rank, judgement.reason
