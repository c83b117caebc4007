"""Xid events: what they are called and what to do, how often they are told, and cards that report none."""

from __future__ import annotations

import pytest

from rangewatch.collectors.gpu import xid as xid_watch
from rangewatch.collectors.gpu.xid import ACTIONS, CATALOGUE, xid
from tests.agent.collectors.conftest import H100, SECOND_H100, Collecting, Driver, Reported, info


def test_an_xid_says_what_to_do(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collecting().collect(0)
    driver.say("0 event 8 79")
    ((message, data),) = reported.wait_for("xid")
    assert "fallen off the bus" in message
    assert "reboot" in message
    assert (data["uuid"], data["xid"], data["resolution"]) == (H100, 79, "reboot_node")


def test_events_of_other_cards_are_not_ours(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.load("h100_pair")
    collecting(info(local_rank=1)).collect(0)
    driver.say("0 event 8 48", "1 event 8 94")
    assert [(data["uuid"], data["xid"]) for _, data in reported.wait_for("xid")] == [(SECOND_H100, 94)]


def test_a_storm_is_counted(
    driver: Driver, collecting: Collecting, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting().collect(0)
    driver.say(*["0 event 8 31"] * 500, "0 event 8 13")
    assert [data["xid"] for _, data in reported.wait_for("xid", 2)] == [31, 13]
    monkeypatch.setattr(xid_watch, "REPEAT_S", 0.0)
    driver.say("0 event 8 31")
    assert [data["repeats_untold"] for _, data in reported.wait_for("xid", 3)] == [0, 0, 499]


def test_events_beside_xid(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collecting().collect(0)
    driver.say("0 event 2 0", "0 event 16384 0", "0 event 65536 0")
    messages = [message for message, _ in reported.wait_for("gpu", 3)]
    parts = ("double-bit", "not available", "0x10000")
    assert all(part in message for part, message in zip(parts, messages, strict=True)), messages


@pytest.mark.parametrize("line", ["0 nvmlDeviceRegisterEvents !4", "0 nvmlDeviceGetSupportedEventTypes 0x4"])
def test_a_card_without_xid_says_so_once(driver: Driver, collecting: Collecting, reported: Reported, line: str) -> None:
    driver.say(line)
    collector = collecting()
    reported.wait_for("gpu") if collector.collect(0) else None
    collector.collect(1)
    collector.collect(2)
    ((message, data),) = reported.of("gpu")
    assert "Xid events are not recorded" in message
    assert data["uuid"] == H100


def test_no_event_sets_at_all(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.say("* nvmlEventSetCreate !3")
    collector = collecting()
    assert len(collector.collect(0)) == 1
    assert "Xid events are not recorded" in reported.wait_for("gpu")[0][0]
    collector.collect(1)
    assert len(reported.of("gpu")) == 1


def test_waiting_goes_on_after_an_error(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.load("h100_pair")
    driver.say("* nvmlEventSetWait_v2 !15")
    collecting(info(local_rank=0)).collect(0)
    driver.say("* nvmlEventSetWait_v2 0", "0 event 8 63")
    assert [data["xid"] for _, data in reported.wait_for("xid")] == [63]


def test_catalogue() -> None:
    assert {entry.resolution for entry in CATALOGUE.values()} <= set(ACTIONS)
    for number in (13, 31, 43, 45, 48, 62, 63, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120, 121, 136, 140, 143, 154):
        assert xid(number).meaning
    assert xid(95).resolution == xid(119).resolution == xid(64).resolution == "reset_gpu"
    assert xid(94).resolution == xid(31).resolution == "restart_training"
    assert xid(63).resolution == xid(43).resolution == "ignore"
    assert xid(128).meaning == "copy engine exception"
    assert "not in the catalogue" in xid(100_000).meaning
    assert "no number" in xid(999).meaning
