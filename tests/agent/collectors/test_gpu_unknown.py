"""What NVML or torch cannot say for a while is unknown: no link that went down, no other card, no growth lost."""

from __future__ import annotations

import math

import pytest

from rangewatch.collectors.gpu import devices
from tests.agent.collectors.conftest import H100, SECOND_H100, Collecting, Driver, Reported, row
from tests.agent.collectors.test_gpu import RunningCuda

UUIDS = [H100.removeprefix("GPU-"), SECOND_H100.removeprefix("GPU-")]


def test_a_link_that_cannot_be_read_is_not_down(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collector = collecting()
    whole = row(collector.collect(0)[0])
    driver.say("0 nvmlDeviceGetNvLinkState(5) !999")
    found = row(collector.collect(1)[0])
    assert reported.events == []
    assert math.isnan(found["nvlink_active_mask"]) and math.isnan(found["nvlink_active_links"])
    assert (found["nvlink_links"], found["nvlink_17_errors"]) == (18, 0)
    assert set(found) == set(whole)
    driver.say("0 nvmlDeviceGetNvLinkState(5) 0")
    collector.collect(2)
    assert ["NVLink 5 went down" in message for message, _ in reported.of("gpu")] == [True]


def test_links_without_a_count_end_where_none_answers(driver: Driver, collecting: Collecting) -> None:
    driver.say("0 field(91) !3", "0 nvmlDeviceGetNvLinkState(4) !2")
    found = row(collecting().collect(0)[0])
    assert (found["nvlink_links"], found["nvlink_active_mask"]) == (4, 0xF)


def test_growth_over_a_reading_that_failed_is_told(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collector = collecting()
    collector.collect(0)
    driver.say("0 nvmlDeviceGetTotalEccErrors(1,0) !999")
    assert math.isnan(row(collector.collect(1)[0])["ecc_uncorrected_volatile"])
    driver.say("0 nvmlDeviceGetTotalEccErrors(1,0) 2")
    collector.collect(2)
    ((message, _),) = reported.of("gpu")
    assert "(0 -> 2)" in message


def test_what_torch_said_outlasts_memory_given_back(
    driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.load("h100_pair")
    running = RunningCuda([0, 1 << 30], uuid=UUIDS)
    monkeypatch.setattr(devices, "cuda", lambda: running)
    collector = collecting()
    for memory in ([0, 1 << 30], [0, 0], [0, 1 << 30]):
        running.memory = memory
        assert [each.key for each in collector.collect(0)] == [SECOND_H100]


def test_a_guess_that_was_wrong_says_goodbye(
    driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    driver.load("h100_pair")
    collector = collecting()
    (guess,) = collector.collect(0)
    running = RunningCuda([0, 1 << 30], uuid=UUIDS)
    monkeypatch.setattr(devices, "cuda", lambda: running)
    last, own = collector.collect(1)
    assert (guess.key, last.key, own.key) == (H100, H100, SECOND_H100)
    values = row(last)
    assert values.pop("step") == 1
    assert all(math.isnan(value) for value in values.values())
    assert set(values) | {"step"} == set(row(guess))
    assert [each.key for each in collector.collect(2)] == [SECOND_H100]
    assert reported.events == []


def test_an_allocator_without_statistics(
    driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.load("h100_pair")

    def refuses(index: int) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    running = RunningCuda([0, 1 << 30], uuid=UUIDS)
    running.memory_reserved = refuses  # type: ignore[method-assign]
    monkeypatch.setattr(devices, "cuda", lambda: running)
    (samples,) = collecting().collect(0)
    assert (samples.key, samples.about["mapped_by"]) == (H100, "order of devices")
