"""Phases by a device's clock, with a double of a stream and its events: never waited for, and the host's where not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.core.guard import Guard
from rangewatch.recording.level import Cost
from rangewatch.steps import phase_clock
from rangewatch.steps.phase_clock import SLICES, WAITING_STEPS, DeviceSlices, PhaseClock, of_device
from tests.agent.ingest_double import IngestDouble


class Stream:
    """A device that works off what is queued. Times in ms; `now` is the host's."""

    def __init__(self) -> None:
        self.now = self.busy_until = 0.0
        self.is_capturing = self.is_lost = False
        self.made = 0

    def queue(self, ms: float) -> None:
        self.busy_until = max(self.busy_until, self.now) + ms

    def slices(self) -> DeviceSlices:
        return DeviceSlices(self.event, lambda event: event.record(), lambda: self.is_capturing)

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    """As torch.cuda.Event answers: times are refused before the events are done."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, math.nan

    def record(self) -> None:
        self._check()
        assert not self.stream.is_capturing
        self.at = max(self.stream.busy_until, self.stream.now)

    def query(self) -> bool:
        self._check()
        return self.at <= self.stream.now

    def elapsed_time(self, end: Event) -> float:
        if not (self.query() and end.query()):
            raise AssertionError("asked before it was done")
        return end.at - self.at

    def _check(self) -> None:
        if self.stream.is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def clock(stream: Stream) -> PhaseClock:
    made = PhaseClock(Cost(3.0), Guard())
    made.device = stream.slices()
    assert set(made.end_step(0)) == {"wall_time_s"}
    return made


def step(clock: PhaseClock, stream: Stream, number: int, *, wait_ms: float = 0.0) -> None:
    """The host queues 10 ms of forward, 20 of backward and 5 of the optimizer, in no time of its own."""
    clock.enter("data_wait")
    stream.now += wait_ms
    clock.leave("data_wait")
    for phase, ms in (("forward", 10.0), ("backward", 20.0), ("optimizer", 5.0)):
        clock.enter(phase)
        stream.queue(ms)
        clock.leave(phase)
    assert set(clock.end_step(number)) == {"wall_time_s"}, "the rest is told later"


def test_the_devices_time_and_not_when_the_host_queued_it(clock: PhaseClock, stream: Stream) -> None:
    step(clock, stream, 1)
    step(clock, stream, 2)
    assert clock.take_late() == [], "not done, and not waited for"
    stream.now = 35.0
    [(number, times)] = clock.take_late()
    assert number == 1
    assert times == pytest.approx(
        {
            "step_time_s": 0.035,
            "data_wait_s": 0,
            "forward_s": 0.01,
            "backward_s": 0.02,
            "optimizer_s": 0.005,
            "other_s": 0,
        }
    )
    stream.now = 1000.0
    assert [number for number, _ in clock.take_late()] == [2]
    assert clock.take_late() == []


def test_a_wait_that_the_devices_work_hides_costs_nothing(clock: PhaseClock, stream: Stream) -> None:
    step(clock, stream, 1)
    step(clock, stream, 2, wait_ms=30.0)
    step(clock, stream, 3, wait_ms=100.0)
    stream.now = 1000.0
    waits = [times["data_wait_s"] for _, times in clock.take_late()]
    assert waits == pytest.approx([0.0, 0.0, 0.06])  # 70 ms were queued at 30, so 60 of the last 100 it was idle


def test_they_add_up_whatever_stream_an_event_was_on(clock: PhaseClock, stream: Stream) -> None:
    """An event of a stream that is ahead may be earlier than the one before it."""
    step(clock, stream, 1)
    stream.busy_until -= 15.0
    step(clock, stream, 2)
    stream.now = 1000.0
    found = clock.take_late()
    assert found[1][1]["backward_s"] == pytest.approx(0.015), "of its 20 ms, 5 were before the step's beginning"
    for _, times in found:
        total_s = times.pop("step_time_s")
        assert math.isclose(sum(times.values()), total_s, rel_tol=1e-9) and min(times.values()) >= 0


def test_events_are_used_again(clock: PhaseClock, stream: Stream) -> None:
    for number in range(1, 50):
        step(clock, stream, number)
        stream.now += 100.0
        assert len(clock.take_late()) == 1
    assert stream.made < 30


def test_at_the_end_what_is_not_done_is_told_by_the_host(clock: PhaseClock, stream: Stream) -> None:
    step(clock, stream, 1)
    step(clock, stream, 2)
    stream.now = 35.0
    clock.end()
    found = dict(clock.take_late())
    assert found[1]["step_time_s"] == pytest.approx(0.035)
    assert 0 < found[2]["step_time_s"] < 0.035, "the host had queued it in no time"


def test_a_device_that_is_lost_raises_nothing(clock: PhaseClock, stream: Stream) -> None:
    step(clock, stream, 1)
    stream.is_lost = True
    step(clock, stream, 2)
    assert [number for number, _ in clock.take_late()] == [1, 2]
    step(clock, stream, 3)
    assert [number for number, _ in clock.take_late()] == [3]


def test_nothing_is_recorded_into_a_graph(clock: PhaseClock, stream: Stream) -> None:
    """And a phase in it is no phase: the replays run no hook, so 0 would be wrong."""
    stream.is_capturing = True
    clock.enter("forward")
    clock.leave("forward")
    clock.end_step(1)
    stream.is_capturing = False
    for number in (2, 3):
        clock.enter("optimizer")
        stream.queue(5.0)
        clock.leave("optimizer")
        clock.end_step(number)
    stream.now = 1000.0
    found = dict(clock.take_late())
    assert sorted(found) == [1, 2, 3]
    assert set(found[3]) == {"step_time_s", "optimizer_s", "other_s"}
    assert found[3]["optimizer_s"] == pytest.approx(0.005)


def test_a_step_of_too_many_slices_is_the_hosts(clock: PhaseClock, stream: Stream) -> None:
    for _ in range(SLICES):
        clock.enter("forward")
        stream.queue(1.0)
        clock.leave("forward")
    clock.end_step(1)
    step(clock, stream, 2)
    stream.now = 1e6
    (_, first), (_, second) = clock.take_late()
    assert stream.made < SLICES + 20
    assert first["step_time_s"] != pytest.approx(SLICES / 1e3), "by the host"
    assert second["step_time_s"] == pytest.approx(0.035), "and the next is the device's again"


def test_what_waits_is_bounded(clock: PhaseClock, stream: Stream) -> None:
    stream.busy_until = 1e9
    for number in range(1, WAITING_STEPS + 11):
        step(clock, stream, number)
    assert [number for number, _ in clock.take_late()] == list(range(1, 11))


def test_communication_is_taken_from_the_devices_slices(clock: PhaseClock, stream: Stream) -> None:
    class Source:
        seconds = 0.0

        def take_exposed_s(self) -> float:
            taken, self.seconds = self.seconds, 0.0
            return taken

    source = Source()
    clock.sources.append(source)
    clock.enter("backward")
    stream.queue(20.0)
    source.seconds = 0.008
    clock.leave("backward")
    clock.end_step(1)
    stream.now = 1000.0
    [(_, times)] = clock.take_late()
    assert times == pytest.approx({"step_time_s": 0.02, "backward_s": 0.012, "exposed_comm_s": 0.008, "other_s": 0.0})


def test_in_training(ingest: IngestDouble, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_clock, "of_device", lambda device: stream.slices())
    model = nn.Linear(4, 1)
    model.register_forward_hook(lambda *_: stream.queue(10.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0):
        for _ in range(6):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            stream.now += 7.0
    times: dict[str, Any] = {name: ingest.series(f"{name}_s") for name in ("step_time", "forward", "other")}
    assert sorted(times["step_time"]) == sorted(times["forward"]) == [1, 2, 3, 4, 5]
    done = [step for step in times["forward"] if times["forward"][step] > 0.009]
    assert done[:2] == [1, 2] and times["step_time"][1] == pytest.approx(0.01)


def test_only_cuda_has_one() -> None:
    assert of_device(torch.device("cpu")) is None and of_device(torch.device("meta")) is None
    assert isinstance(of_device(torch.device("cuda", 0)), DeviceSlices)


@pytest.mark.gpu
def test_on_a_real_device(ingest: IngestDouble) -> None:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(256, 512, device="cuda")
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(20):
            model(batch).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
    times = ingest.series("step_time_s")
    assert sorted(times) == list(range(1, 20))
    parts = [ingest.series(f"{name}_s") for name in ("forward", "backward", "optimizer", "other")]
    for number, total_s in times.items():
        assert math.isclose(sum(part[number] for part in parts), total_s, rel_tol=1e-6)
        assert all(part[number] > 0 for part in parts[:3])
