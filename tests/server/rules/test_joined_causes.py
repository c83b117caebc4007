"""Causes that several sources tell of together: a slow rank and its GPU, a hang and a dead rank, memory, data."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event, Samples
from rangewatch_server import rules
from rangewatch_server.rules import BY_NAME, Finding
from rangewatch_server.rules.diagnosis import Diagnosis, joined
from tests.server.routes import test_collectives_api as ranks
from tests.server.rules.conftest import Recording, Stored, tensor

LAYERS = [tensor("a")]
GIB = 2**30
SECOND = 10**9
NAMES = ("rank_died", "out_of_memory", "hang", "gpu_health", "straggler", "data_bound")
MINE = tuple(BY_NAME[name] for name in NAMES)
SEGFAULT = {"signal": 11, "exit_code": None, "stack": "Fatal Python error", "module": "a.b", "oom_kills": 0}


class Sender:
    """`send` of test_collectives_api posts to a server: here straight to the store."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def post(self, *messages: Any) -> None:
        self.recording.send(*messages)


def send(recording: Recording, late: int | None = 2, **samples: Any) -> None:
    ranks.send(Sender(recording), late, **samples)


def names(found: Diagnosis) -> list[str]:
    assert found.failed == {}
    return [each.rule for each in found.findings]


def throttled(rank: int, seconds: int = 60, bits: float = 64.0) -> Samples:
    times = 10**18 + np.arange(seconds) * SECOND
    values = {"step": 0.0, "present": 1.0, "power_w": 400.0, "sm_clock_mhz": 900.0, "temperature_c": 91.0}
    columns = {name: np.full(seconds, value) for name, value in values.items()} | {
        "throttle_reasons": np.full(seconds, bits)
    }
    return Samples("gpu", f"GPU-{rank}", times, columns, {"name": "H100", "host": f"node{rank}", "device_index": rank})


def test_a_slow_rank_is_named_with_what_it_costs(stored: Stored) -> None:
    send(stored)
    found = stored.diagnose(*MINE)
    assert names(found) == ["straggler"]
    (slow,) = found.findings
    assert (slow.rank, slow.severity, slow.facts["where"]) == (2, "info", "data loader")  # 20 steps are not for long
    assert "rank 2" in slow.summary
    assert "data loader more workers" in slow.remedy[0].text
    assert stored.diagnose(BY_NAME["straggler"], thresholds={"straggler": {"least_cost_ms": 50}}).findings == ()


@pytest.mark.parametrize(
    ("limits", "severity"),
    [
        ({}, "warning"), ({"least_steps": 21}, "info"), ({"least_s": 4.1}, "info"), ({"least_share": 0.3}, "info"),
    ],
    ids=["long and much", "few steps", "not for long", "not much"],
)  # fmt: skip
def test_a_slow_rank_is_a_warning_once_it_lasts_and_matters(
    stored: Stored, limits: dict[str, float], severity: str
) -> None:
    """A busy host keeps a rank from its core for seconds, and then another: that is no warning."""
    send(stored)
    limits = {"least_steps": 15, "least_s": 3.0} | limits
    (slow,) = stored.diagnose(BY_NAME["straggler"], thresholds={"straggler": limits}).findings
    assert slow.severity == severity


def test_where_nobody_is_late_nothing_is_found(stored: Stored) -> None:
    send(stored, late=None)
    assert names(stored.diagnose(*MINE)) == []


def test_a_slow_rank_with_a_hot_gpu_is_one_finding(stored: Stored) -> None:
    send(stored, rank2=(throttled(2), ranks.host()))
    found = stored.diagnose(*MINE)
    assert names(found) == ["gpu_health"]
    (hot,) = found.findings
    assert (hot.rank, hot.severity) == (2, "warning")
    assert "HW thermal slowdown." in hot.evidence
    assert "Its temperature is 91 C." in hot.evidence
    assert len(hot.consequences) == 1 and "rank 2" in hot.consequences[0]


def test_another_ranks_gpu_explains_nothing(stored: Stored) -> None:
    send(stored, rank1=(throttled(1), ranks.host()))
    assert sorted(names(stored.diagnose(*MINE))) == ["gpu_health", "straggler"]


@pytest.mark.parametrize(
    ("samples", "severity"),
    [(throttled(1, 5), None), (throttled(1, 60, 4.0), None), (ranks.gpu(1), None),
     (ranks.gpu(1, ecc_uncorrected_volatile=2.0), "critical"), (ranks.gpu(1, present=0.0), "critical")],
    ids=["a moment", "the power cap, which is normal", "well", "memory errors", "gone"],
)  # fmt: skip
def test_the_health_of_a_gpu(stored: Stored, samples: Samples, severity: str | None) -> None:
    send(stored, late=None, rank1=(samples, ranks.host()))
    found = stored.diagnose(BY_NAME["gpu_health"]).findings
    assert [each.severity for each in found] == ([] if severity is None else [severity])


def died(rank: int, data: dict[str, Any], step: int = 150) -> Event:
    return Event("died", 1, step, f"died of signal {data['signal']} in step {step}", data)


def test_a_dead_rank_is_told_with_how_it_died(stored: Stored) -> None:
    stored.write(LAYERS, 200, world_size=2)
    stored.write(LAYERS, 150, rank=1, world_size=2)
    stored.send(_more(1, died(1, SEGFAULT)))
    (dead,) = stored.diagnose(*MINE).findings
    assert (dead.rule, dead.rank, dead.step, dead.tensor) == ("rank_died", 1, 150, "a.b")
    assert dead.summary == "Rank 1 died of signal 11 in step 150."
    assert dead.remedy[0].because == "it touched memory that is not its own"


def test_the_step_in_which_a_rank_died_is_the_one_after_its_last(stored: Stored) -> None:
    """One in progress, which no rank has told of; of the run as it was before, it is not told."""
    stored.write(LAYERS, 200)
    stored.send(_more(0, died(0, SEGFAULT, step=200)))
    assert names(stored.diagnose(*MINE)) == ["rank_died"]
    assert names(stored.diagnose(*MINE, stop=150)) == []


def test_of_the_run_as_it_was_no_later_event_counts(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    stored.send(_more(0, Event("failed", 1, 150, "OutOfMemoryError", {"out_of_memory": True})))
    assert names(stored.diagnose(*MINE, stop=151)) == ["out_of_memory"]
    assert names(stored.diagnose(*MINE, stop=150)) == []


def test_who_was_stopped_from_outside_did_not_die(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    stored.send(_more(0, died(0, SEGFAULT | {"signal": 15})))
    assert names(stored.diagnose(*MINE)) == []


def _more(rank: int, *events: Event, samples: tuple[Samples, ...] = ()) -> Batch:
    digest = wire.catalogue_digest(Catalogue(statistics.ALL, tuple(LAYERS)))
    return Batch("run", rank, "a", 9, digest, settled=9, events=events, samples=samples)


def test_a_kill_for_memory_is_one_finding_with_its_growth(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    used = np.linspace(10, 60, 60) * GIB
    grew = Samples("host", "", 10**18 + np.arange(60) * SECOND, {"memory_used_bytes": used}, {})
    stored.send(_more(0, died(0, SEGFAULT | {"signal": 9, "oom_kills": 1}), samples=(grew,)))
    found = stored.diagnose(*MINE)
    assert names(found) == ["out_of_memory"]
    (memory,) = found.findings
    assert memory.summary == "Rank 0 ran out of its host's or container's memory."
    assert memory.evidence[-1] == "Memory in use had grown: 22.3 GiB before, 57.9 GiB at the end."
    assert memory.consequences == ("Rank 0 died of signal 9 in step 150.",)


def test_a_gpu_without_room_has_its_figures(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    devices = {"0": {"allocated_peak_bytes": 70 * GIB, "reserved_bytes": 75 * GIB, "total_bytes": 80 * GIB}}
    data = {"out_of_memory": True, "devices": devices}
    stored.send(_more(0, Event("failed", 1, 199, "OutOfMemoryError: CUDA out of memory", data)))
    (memory,) = stored.diagnose(*MINE).findings
    assert memory.summary == "Rank 0 ran out of its GPU's memory."
    assert "GPU 0: 70.0 GiB allocated at the peak, 75.0 held of 80.0 GiB." in memory.evidence


def test_another_failure_is_no_want_of_memory(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    stored.send(_more(0, Event("failed", 1, 199, "ValueError: x", {"devices": 3})))
    assert names(stored.diagnose(*MINE)) == []


PHASES = {"data_wait_s": 0.050, "forward_s": 0.02, "backward_s": 0.03, "optimizer_s": 0.01, "step_time_s": 0.11}


def test_waiting_for_data_is_told(recording: Recording) -> None:
    recording.write(LAYERS, 200, series=PHASES)
    (found,) = recording.diagnose().findings
    assert (found.rule, found.rank) == ("data_bound", 0)
    assert found.summary == "Rank 0: 45% of the step goes by waiting for data."
    assert found.evidence == ("The median wait for a batch is 50.0 ms over the last 100 steps.",)


def test_one_rank_of_four_that_waits_is_told_with_its_own_wait(recording: Recording) -> None:
    for rank in range(4):
        recording.write(LAYERS, 200, rank=rank, world_size=4, series=PHASES | {"data_wait_s": 0.05 * (rank == 3)})
    (found,) = recording.diagnose().findings
    assert (found.rule, found.rank) == ("data_bound", 3)
    assert found.evidence == ("The median wait for a batch is 50.0 ms over the last 100 steps.",)


def test_memory_is_judged_by_its_last_hours(stored: Stored) -> None:
    stored.write(LAYERS, 200)
    times = 10**18 + np.arange(120) * 200 * SECOND
    used = np.where(np.arange(120) < 80, 10.0, 60.0) * GIB  # more was loaded hours ago, and kept
    samples = Samples("host", "", times, {"memory_used_bytes": used}, {})
    stored.send(_more(0, died(0, SEGFAULT | {"signal": 9, "oom_kills": 1}), samples=(samples,)))
    (memory,) = stored.diagnose(*MINE).findings
    assert memory.evidence[-1] == "Memory in use had not grown: 60.0 GiB before, 60.0 GiB at the end."


@pytest.mark.parametrize("phases", [PHASES | {"data_wait_s": 0.002}, {}, {"step_time_s": 1.0}])
def test_a_loader_that_keeps_up_is_not(recording: Recording, phases: dict[str, float]) -> None:
    recording.write(LAYERS, 200, series=phases)
    assert names(recording.diagnose()) == []


def test_the_first_steps_are_not_judged(recording: Recording) -> None:
    recording.write(LAYERS, 40, series=PHASES)
    assert names(recording.diagnose()) == []


def test_a_finding_explains_another_one_only_of_its_rank_and_not_earlier() -> None:
    dead = Finding(rule="rank_died", severity="critical", rank=1, step=150, summary="died")
    slow = Finding(rule="straggler", severity="warning", rank=1, step=150, summary="slow")
    explained = {rule.name: frozenset(rule.explains) for rule in rules.ALL}
    assert [each.rule for each in joined([dead, slow], explained)] == ["rank_died"]
    for other in ({"rank": 0}, {"step": 10}):
        apart = joined([dead, msgspec.structs.replace(slow, **other)], explained)
        assert len(apart) == 2 and not any(each.consequences for each in apart)
    milder = msgspec.structs.replace(dead, severity="info")
    assert len(joined([milder, slow], explained)) == 2


def nonfinite(**more: Any) -> Finding:
    usual = {"rule": "first_nonfinite", "severity": "critical", "rank": 2, "step": 153, "summary": "NaN"}
    return Finding(**usual | more)


def replica(**more: Any) -> Finding:
    usual = {"rule": "replica_mismatch", "severity": "critical", "rank": 2, "step": 150, "summary": "differs"}
    return Finding(**usual | more)


EXPLAINED = {rule.name: frozenset(rule.explains) for rule in rules.ALL}


def test_a_replica_that_differs_explains_what_becomes_of_it() -> None:
    loss = Finding(rule="loss_nonfinite", severity="critical", step=153, summary="loss")
    (only,) = joined([loss, nonfinite(), replica()], EXPLAINED)
    assert (only.rule, only.consequences) == ("replica_mismatch", ("NaN", "loss"))


@pytest.mark.parametrize(
    ("cause", "found"),
    [
        (replica(), nonfinite(rank=1)), (replica(), nonfinite(step=149)), (replica(severity="warning"), nonfinite()),
        (replica(rank=None), nonfinite()),
    ],
    ids=["another rank's", "earlier", "devices that round otherwise", "no rank known"],
)  # fmt: skip
def test_and_nothing_else(cause: Finding, found: Finding) -> None:
    apart = joined([found, cause], EXPLAINED)
    assert len(apart) == 2 and not any(each.consequences for each in apart)


def test_what_follows_a_rise_of_the_learning_rate_is_of_the_nan_that_it_led_to() -> None:
    grew = Finding(rule="exploding_gradient", severity="warning", rank=2, step=151, summary="grew")
    apart = joined([nonfinite(), grew], EXPLAINED)
    assert [each.rule for each in apart] == ["first_nonfinite", "exploding_gradient"]
    (only,) = joined([nonfinite(facts={"cause_step": 150}), grew], EXPLAINED)
    assert only.consequences == ("grew",)
    assert len(joined([nonfinite(facts={"cause_step": 152}), grew], EXPLAINED)) == 2


def test_what_explains_what_makes_no_circle() -> None:
    explained = {rule.name: set(rule.explains) for rule in rules.ALL}
    for name in explained:
        seen: set[str] = set()
        left = set(explained[name])
        while left:
            seen |= left
            left = {each for known in left for each in explained.get(known, set())} - seen
        assert name not in seen
    assert set().union(*explained.values()) <= set(explained)


def test_diagnose_has_the_order_of_the_verdict() -> None:
    """Not by severity alone: a straggler comes before replicas that differ, wherever a run's findings are listed."""
    given = [("replica_mismatch", "critical", 1), ("straggler", "warning", 5), ("rank_died", "critical", 9)]
    findings = [Finding(rule=rule, severity=severity, step=step, summary=rule) for rule, severity, step in given]
    explained: dict[str, frozenset[str]] = {rule: frozenset() for rule, _, _ in given}
    assert [each.rule for each in joined(findings, explained)] == ["rank_died", "straggler", "replica_mismatch"]
