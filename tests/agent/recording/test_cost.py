"""The agent's own cost: measured on some steps, sent, and held against a budget."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.core import limits
from rangewatch.recording.level import Cost
from rangewatch.statistics.fused import DeviceCost
from tests.agent.ingest_double import IngestDouble


def train(ingest: IngestDouble, steps: int, **options: Any) -> rangewatch.Handle:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, **options) as handle:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return handle


def test_its_time_is_sent(ingest: IngestDouble) -> None:
    train(ingest, 2 * limits.COST_EVERY + 1)
    spent, steps = ingest.series("agent_time_s"), ingest.series("step_time_s")
    assert sorted(spent) == [limits.COST_EVERY, 2 * limits.COST_EVERY]
    # Of a step of 100 us a pause of the process, in the agent's part at its end, may be more than the rest.
    assert all(0 < each < sum(steps.values()) for each in spent.values())


class TestTheBudget:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "COST_S", 0.0)
        monkeypatch.setattr(limits, "COST_EVERY", 1)

    def kinds_at(self, ingest: IngestDouble, step: int) -> set[str]:
        return {kind for (_, kind, _), cells in ingest.tensors().items() if step in cells}

    def test_above_it_less_is_recorded(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        train(ingest, 400, level="frames", budget_percent=0.001)
        reported = ingest.events("level")
        assert self.kinds_at(ingest, 1) >= {"input", "output", "grad"}
        assert self.kinds_at(ingest, reported[0].step) == {"output", "grad_output", "grad"}
        rare, none, already = reported[1:]
        assert [step for step in range(rare.step, none.step) if "output" in self.kinds_at(ingest, step)] == [
            step for step in range(rare.step, none.step) if step % 61 == 0
        ]
        assert self.kinds_at(ingest, rare.step + 1) == self.kinds_at(ingest, 399) == {"grad"}
        forward = ["grad", "grad_output", "output"]
        assert [event.data["kinds"] for event in reported] == [forward, forward, ["grad"], ["grad"]]
        assert [event.data["every"] for event in reported] == [1, 61, 1, 1]
        assert "it records grad_output, output at one step in 61" in rare.message
        assert "it records grad only already" in already.message
        warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warned) == 4 and "the budget is 0.001 %" in warned[0] and "budget_percent=100" in warned[0]

    def test_below_it_nothing_changes(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        train(ingest, 30, budget_percent=100)
        assert not ingest.events("level") and not caplog.records
        assert self.kinds_at(ingest, 29) == {"output", "grad_output", "grad"}

    def test_unusual_steps_do_not_count(self, ingest: IngestDouble) -> None:
        train(ingest, 30, budget_percent=0.001, trace_batch_nums=range(40))
        assert not ingest.events("level")

    def test_kinds_that_have_no_lower_level(self, ingest: IngestDouble) -> None:
        train(ingest, 30, kinds=["grad"], budget_percent=0.001)
        assert [event.data["kinds"] for event in ingest.events("level")] == [["grad"]]

    def test_outputs_alone_are_read_at_fewer_steps(self, ingest: IngestDouble) -> None:
        train(ingest, 400, kinds=["output"], budget_percent=0.001)
        assert [event.data["every"] for event in ingest.events("level")] == [61, 61]
        (cells,) = {tuple(steps) for steps in ingest.tensors().values()}
        assert list(cells[-3:]) == [244, 305, 366]


def test_the_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COST_EVERY", 1)
    cost = Cost(budget_percent=10)

    def measure(count: int, share: float) -> None:
        for step in range(count):
            cost.begin_step(step)
            cost.spent_ns = int(share * 1e9)
            assert cost.end_step(1.0, is_usual=True) == pytest.approx(share)

    measure(limits.COST_STEPS, 0.2)
    assert cost.excess() is None, "too early"
    later_s = time.monotonic() + limits.COST_S
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert cost.excess() == pytest.approx(0.2)
    cost.forget()
    monkeypatch.setattr(limits, "COST_S", 0.0)
    measure(limits.COST_STEPS - 1, 0.2)
    assert cost.excess() is None, "too few"
    measure(limits.COST_STEPS, 0.09)
    assert cost.excess() is None


@pytest.mark.parametrize(("percent", "share"), [(99, 1.3), (100, None)])
def test_a_budget_of_all_lets_it_be(monkeypatch: pytest.MonkeyPatch, percent: float, share: float | None) -> None:
    """Also where a busy machine measures more than all."""
    monkeypatch.setattr(limits, "COST_EVERY", 1)
    monkeypatch.setattr(limits, "COST_S", 0.0)
    cost = Cost(budget_percent=percent)
    for step in range(limits.COST_STEPS):
        cost.begin_step(step)
        cost.spent_ns = int(1.3e9)
        cost.end_step(1.0, is_usual=True)
    assert cost.excess() == (share if share is None else pytest.approx(share))


def test_a_devices_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known some steps later; and where the training waits for it, the thread's says nothing."""
    monkeypatch.setattr(limits, "COST_EVERY", 1)
    monkeypatch.setattr(limits, "COST_S", 0.0)
    cost = Cost(budget_percent=10)
    for step in range(limits.COST_STEPS):
        cost.begin_step(step)
        cost.spent_ns = int(0.05e9)
        cost.end_step(1.0, is_usual=True)
    assert cost.excess() is None
    for step in range(limits.COST_STEPS - 2):
        cost.add_device(step, DeviceCost(0.3, was_behind=False))
    assert cost.excess() == pytest.approx(0.3)
    for step in range(limits.COST_STEPS - 2):
        cost.add_device(step, DeviceCost(0.02, was_behind=False))
    cost.budget = 0.01
    assert cost.excess() == pytest.approx(0.05)
    for step in range(limits.COST_STEPS - 2):
        cost.add_device(step, DeviceCost(0.02, was_behind=True))
    assert cost.excess() == pytest.approx(0.02)


def test_steps_of_two_kinds_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read at one step in three: 0.6 there and 0.03 at the others are 0.22 in the mean."""
    monkeypatch.setattr(limits, "COST_S", 0.0)
    cost = Cost(budget_percent=10)
    for step in range(5 * limits.COST_EVERY):
        cost.begin_step(step, every=3)
        cost.spent_ns = int(1e9 * (0.03 if step % 3 else 0.6))
        cost.end_step(1.0, is_usual=True)
    assert cost.excess() is None, "too few of those at which little is read"
    for step in range(5 * limits.COST_EVERY, 7 * limits.COST_EVERY):
        cost.begin_step(step, every=3)
        cost.spent_ns = int(1e9 * (0.03 if step % 3 else 0.6))
        cost.end_step(1.0, is_usual=True)
    assert cost.excess() == pytest.approx(0.22)
