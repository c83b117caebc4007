"""Which cards are shown and what is said of them: cards that were never a rank's, alarms among many events."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.records import Batch, Event, Samples, StreamHeader
from rangewatch_server.rules.machine import gpu_health
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
START_NS, SECOND = 10**18, 10**9


def card(key: str, first_s: int, present: tuple[float, ...]) -> Samples:
    times = START_NS + (first_s + np.arange(len(present))) * SECOND
    columns = {"step": np.arange(float(len(present))), "present": np.array(present)}
    return Samples("gpu", key, times, columns, {"name": "H100"})


def host(last_s: int) -> Samples:
    columns = {"step": np.zeros(1), "load_1m": np.ones(1)}
    return Samples("host", "", np.array([START_NS + last_s * SECOND]), columns, {})


def sampled(*samples: Samples, events: tuple[Event, ...] = ()) -> Batch:
    return msgspec.structs.replace(batch(KNOWN, 0, range(3), events=events), samples=samples)


def send(run: Run, *messages: StreamHeader | Batch) -> None:
    for message in messages:
        answer = run.post(message)
        assert answer.status_code == 202, answer.text


def states(run: Run) -> dict[str, str]:
    return {each["key"]: each["state"] for each in run.get("/gpus")["gpus"]}


def test_a_card_that_was_not_the_ranks_after_all_has_not_vanished(run: Run) -> None:
    guess, own = card("GPU-guess", 0, (1.0, 1.0, np.nan)), card("GPU-own", 2, (1.0,) * 60)
    send(run, opening(KNOWN), sampled(guess, own, host(62)))
    assert states(run) == {"GPU-own": "ok"}
    assert run.get("/gpus/0?key=GPU-guess")["values"]["present"] == [1.0, 1.0, None]


def test_an_alarm_is_not_hidden_by_later_events(run: Run) -> None:
    data = {"uuid": "GPU-own", "xid": 79, "resolution": "reboot_node"}
    xid = Event("xid", START_NS, 1, "Xid 79, fell off the bus", data)
    others = tuple(Event("gpu", START_NS, 1, "is shared", {"uuid": "GPU-own"}) for _ in range(600))
    parts = [batch(KNOWN, 1 + n, range(0), events=others[n * 200 :][:200]) for n in range(3)]
    send(run, opening(KNOWN), sampled(card("GPU-own", 0, (1.0,)), host(0), events=(xid,)), *parts)
    assert states(run) == {"GPU-own": "alarm"}
    said = run.get("/gpus/0?key=GPU-own")["events"]
    assert (said[0]["kind"], len(said)) == ("xid", 501)
    found = run.get("/diagnosis")["findings"]
    assert [each["links"] for each in found] == [[["This GPU", f"/runs/{run.id}/gpu?rank=0&key=GPU-own"]]]


def test_a_slowdown_is_dated_by_its_first_sample_and_an_error_by_its_event(run: Run) -> None:
    """Not by the newest sample; a slowdown that was over for a minute is another one."""
    second = np.arange(240.0)
    slow = ((second > 20) & (second < 30)) | (second > 150)
    columns = {
        "step": 2 * second, "present": np.ones(240), "throttle_reasons": np.where(slow, 64.0, 0.0),
        "temperature_c": np.full(240, 92.0), "sm_clock_mhz": np.full(240, 1200.0),
    }  # fmt: skip
    times = START_NS + np.arange(240) * SECOND
    hot = Samples("gpu", "GPU-hot", times, columns, {"name": "H100", "maxima": {"sm_clock_mhz": 1980.0}})
    bad = Samples("gpu", "GPU-bad", times, columns | {"throttle_reasons": np.zeros(240)}, {"name": "H100"})
    data = {"uuid": "GPU-bad", "xid": 79, "resolution": "reboot_node"}
    xid = Event("xid", int(times[200]), 400, "Xid 79, fell off the bus", data)
    host_now = Samples("host", "", times[-1:], {"step": np.zeros(1)}, {"host": "node0"})
    send(run, opening(KNOWN), sampled(hot, bad, host_now, events=(xid,)))
    found = {each["subject"]: each for each in run.get("/diagnosis")["findings"] if each["rule"] == "gpu_health"}
    assert (found["GPU-hot"]["step"], found["GPU-bad"]["step"]) == (302, 400)
    assert "is throttled (92 C, 1,200 of 1,980 MHz), since step 302." in found["GPU-hot"]["summary"]


def test_every_rank_without_a_driver_is_told_of(run: Run) -> None:
    def reported(count: int) -> tuple[Event, ...]:
        reason = "the NVIDIA driver is not loaded"
        return tuple(Event("gpu", START_NS, 1, reason, {"reason": reason}) for _ in range(count))

    send(run, opening(KNOWN, rank=1, world_size=2), batch(KNOWN, 0, range(0), rank=1, events=reported(1)))
    send(run, opening(KNOWN, world_size=2), *(batch(KNOWN, n, range(0), events=reported(200)) for n in range(3)))
    assert [each["rank"] for each in run.get("/gpus")["notes"]] == [0, 1]


def test_a_finding_leads_to_the_page_of_its_card() -> None:
    card = {"rank": 3, "key": "GPU-a b&c", "state": "gone", "name": "H100", "host": "n", "step": None, "why": []}
    found = gpu_health._finding(card | {"values": {}, "about": {}}, None)
    assert gpu_health.RULE.links(7, found) == (("This GPU", "/runs/7/gpu?rank=3&key=GPU-a+b%26c"),)
