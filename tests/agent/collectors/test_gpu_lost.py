"""Cards and drivers that stop answering: told once, rows go on saying so, and a recovery is noticed."""

from __future__ import annotations

import math

import pytest

from rangewatch.collectors.gpu import collector as gpu
from rangewatch.wire.records import Samples
from tests.agent.collectors.conftest import H100, SECOND_H100, Collecting, Driver, Reported, row


def _presence(samples: list[Samples]) -> dict[str, float]:
    return {each.key: row(each)["present"] for each in samples}


@pytest.mark.parametrize("code", [15, 999, *(pytest.param(code, marks=pytest.mark.slow) for code in (16, 6))])
def test_lost_card(driver: Driver, collecting: Collecting, reported: Reported, code: int) -> None:
    collector = collecting()
    whole = row(collector.collect(0)[0])
    driver.say(f"0 any !{code}")
    for step in (1, 2, 3):
        (samples,) = collector.collect(step)
        found = row(samples)
        assert (found.pop("step"), found.pop("present")) == (step, 0)
        assert set(found) == set(whole) - {"step", "present"}
        assert all(math.isnan(value) for value in found.values())
    ((message, data),) = reported.of("gpu_lost")
    assert H100 in message
    assert (data["uuid"], data["code"], data["last"]["temperature_c"]) == (H100, code, 64)


@pytest.mark.parametrize(
    "line", ["0 nvmlDeviceGetPowerUsage !15", "0 field(82) !15", "0 nvmlDeviceGetNvLinkState(9) !15"]
)
def test_one_answer_that_it_is_lost_is_enough(
    driver: Driver, collecting: Collecting, reported: Reported, line: str
) -> None:
    collector = collecting()
    collector.collect(0)
    driver.say(line)
    assert row(collector.collect(1)[0])["present"] == 0
    assert len(reported.of("gpu_lost")) == 1


def test_lost_in_the_middle_of_a_look(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collector = collecting()
    driver.say("* lost_after 400 15")
    seen = [row(collector.collect(step)[0])["present"] for step in range(6)]
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 1
    assert seen[-1] == 0
    assert len(reported.of("gpu_lost")) == 1


def test_recovered_card(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collector = collecting()
    collector.collect(0)
    driver.say("0 any !15")
    collector.collect(1)
    driver.say("0 any 0", "0 nvmlDeviceGetViolationStatus(0) 99000000000")
    found = row(collector.collect(2)[0])
    assert (found["present"], found["temperature_c"]) == (1, 64)
    assert math.isnan(found["violation_power_ns"])  # over a gap nobody knows
    ((message, data),) = reported.of("gpu")
    assert "answers again" in message
    assert data["recovered"] is True
    driver.say("0 any !15")
    collector.collect(3)
    assert len(reported.of("gpu_lost")) == 2


def test_one_lost_card_of_two(driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    from rangewatch.collectors.gpu import devices
    from tests.agent.collectors.test_gpu import RunningCuda

    driver.load("h100_pair")
    uuids = [H100.removeprefix("GPU-"), SECOND_H100.removeprefix("GPU-")]
    monkeypatch.setattr(devices, "cuda", lambda: RunningCuda([1 << 30, 1 << 30], uuid=uuids))
    collector = collecting()
    assert _presence(list(collector.collect(0))) == {H100: 1, SECOND_H100: 1}
    driver.say("1 any !15")
    assert _presence(list(collector.collect(1))) == {H100: 1, SECOND_H100: 0}


def test_a_lost_card_is_not_asked_every_second(
    driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "SLOW_EVERY_S", 3600.0)
    collector = collecting()
    collector.collect(0)
    driver.say("0 any !15")
    collector.collect(1)
    driver.say("0 any 0")
    assert row(collector.collect(2)[0])["present"] == 0


@pytest.mark.parametrize("code", [9, *(pytest.param(code, marks=pytest.mark.slow) for code in (1, 18))])
def test_driver_lost_in_the_run(driver: Driver, collecting: Collecting, reported: Reported, code: int) -> None:
    collector = collecting()
    collector.collect(0)
    driver.say(f"* any !{code}")
    assert [row(collector.collect(step)[0])["present"] for step in (1, 2, 3)] == [0, 0, 0]
    assert len(reported.of("gpu_lost")) == 1
    driver.say("* any 0")
    assert row(collector.collect(4)[0])["present"] == 1
    driver.say("0 event 8 31")
    assert [data["xid"] for _, data in reported.wait_for("xid")] == [31]  # the watch was made anew, too


def test_driver_not_loaded_at_first(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.say("* nvmlInitWithFlags !9")
    collector = collecting()
    assert [*collector.collect(0), *collector.collect(1)] == []
    ((message, _),) = reported.of("gpu")
    assert "driver is not loaded" in message
    driver.say("* nvmlInitWithFlags 0")
    assert row(collector.collect(2)[0])["present"] == 1


def test_driver_that_does_not_answer(
    driver: Driver, collecting: Collecting, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = collecting()
    collector.collect(0)
    monkeypatch.setattr(gpu, "PATIENCE_S", 0.0)
    monkeypatch.setattr(gpu, "SILENCE_S", 0.0)
    driver.say("* hang_ms nvmlDeviceGetUtilizationRates 1000")
    (samples,) = collector.collect(1)
    assert row(samples)["present"] == 0
    ((message, _),) = reported.of("gpu_lost")
    assert "has not answered" in message
    driver.say("* hang_ms nothing 0")
    monkeypatch.setattr(gpu, "PATIENCE_S", 20.0)
    while collector._thread.is_busy:  # the look that hung comes back
        collector.collect(2)
    assert row(collector.collect(3)[0])["present"] == 1
    assert len(reported.of("gpu_lost")) == 1
    assert "answers again" in reported.of("gpu")[0][0]
