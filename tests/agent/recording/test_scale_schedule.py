"""Scales are read as often as their share of the time allows, at the same steps on ranks that differ, on a clock that
the tests turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rangewatch.core import limits
from rangewatch.recording import scale_schedule
from rangewatch.recording.scale_schedule import ScaleSchedule

STEP_NS, STEPS, FULL_EVERY = 10_000_000, 4_000, 100


class Training:
    """Steps of 10 ms, in which a reading takes `cost` of one, and one with counts three times as much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float, every: int = 0) -> None:
        self.cost, self.now_ns = cost, 0
        monkeypatch.setattr(scale_schedule, "_now", lambda: (2 * self.now_ns, self.now_ns))  # the machine is busy
        monkeypatch.setattr(scale_schedule.time, "thread_time_ns", lambda: self.now_ns)
        self.host = SimpleNamespace(saw_nonfinite=False, is_full=True)
        host: Any = self.host
        recording: Any = SimpleNamespace(is_traced=False)
        self.schedule = ScaleSchedule(host, recording, every)
        self.read: list[int] = []
        self.counted: list[int] = []
        self.spent_ns = 0.0

    def run(self, steps: int, before_end: Callable[[int], None] = lambda step: None, first: int = 0) -> None:
        for step in range(first, first + steps):
            self.now_ns += STEP_NS
            if self.schedule.is_due:
                took_ns = int(self.cost * STEP_NS * (3 if self.schedule.is_full else 1))
                began_ns, self.now_ns = self.now_ns, self.now_ns + took_ns
                self.schedule.add(began_ns)
                self.spent_ns += took_ns
                self.read.append(step)
                if self.schedule.is_full:
                    self.counted.append(step)
            before_end(step)
            self.schedule.end_step()
            self.host.is_full, self.host.saw_nonfinite = (step + 1) % FULL_EVERY == 0, False
            self.schedule.begin_step(step + 1)


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.16, 0.5, 3.0])
def test_readings_stay_within_their_share(cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, cost)
    training.run(STEPS)
    spent = training.spent_ns / training.now_ns
    assert spent <= 1.2 * limits.SCALES_FRACTION + 4 * cost / STEPS, "all but the first reading"
    if cost <= 0.5:
        assert spent >= 0.4 * limits.SCALES_FRACTION or len(training.read) > 0.9 * STEPS
        assert len(training.counted) >= 0.25 * STEPS / FULL_EVERY
    every = training.schedule.every
    assert every & (every - 1) == 0 and all(step % every == 0 for step in training.read[-1:])


def test_ranks_of_different_costs_have_steps_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for cost in (0.04, 0.16):
        training = Training(monkeypatch, cost)
        training.run(STEPS)
        read.append(set(training.read[3:]))
    assert len(read[0] & read[1]) > 0.4 * len(read[1]) > 8


def test_what_is_not_as_usual_is_read_at_once_and_within_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, 0.16)
    training.run(1_001)
    assert 1_002 not in training.read
    training.run(2, lambda step: setattr(training.host, "saw_nonfinite", True), first=1_001)
    assert training.read[-1] == 1_002 and training.schedule.is_due
    spent_ns, now_ns = training.spent_ns, training.now_ns
    training.run(STEPS, lambda step: setattr(training.host, "saw_nonfinite", True), first=1_003)
    spent = (training.spent_ns - spent_ns) / (training.now_ns - now_ns)
    assert spent <= 1.3 * limits.SCALES_FRACTION + 5 * 0.16 / STEPS


def test_a_number_of_steps_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, 0.5, every=7)
    training.run(70)
    assert training.read == list(range(0, 70, 7)) and training.schedule.every == 7


def test_one_short_step_in_many_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an empty batch: each change of the interval sends all operands again."""
    training, every = Training(monkeypatch, 0.1), []

    def shorten(step: int) -> None:
        every.append(training.schedule.every)
        training.now_ns -= (step % 50 == 49 and not training.schedule.is_due) * (STEP_NS - 1_000)

    training.run(1_000, shorten)
    assert set(every[200:]) == {32}
