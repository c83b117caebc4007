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
        train(ingest, 40, level="frames", budget_percent=0.001)
        reported = ingest.events("level")
        assert self.kinds_at(ingest, 1) >= {"input", "output", "grad"}
        assert self.kinds_at(ingest, reported[0].step) == {"output", "grad_output", "grad"}
        assert self.kinds_at(ingest, reported[1].step) == self.kinds_at(ingest, 39) == {"grad"}
        assert [event.data["kinds"] for event in reported] == [["grad", "grad_output", "output"], ["grad"], ["grad"]]
        assert "it records grad only already" in reported[2].message
        warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warned) == 3 and "the budget is 0.001 %" in warned[0] and "budget_percent=100" in warned[0]

    def test_below_it_nothing_changes(self, ingest: IngestDouble, caplog: pytest.LogCaptureFixture) -> None:
        train(ingest, 30, budget_percent=100)
        assert not ingest.events("level") and not caplog.records
        assert self.kinds_at(ingest, 29) == {"output", "grad_output", "grad"}

    def test_unusual_steps_do_not_count(self, ingest: IngestDouble) -> None:
        train(ingest, 30, budget_percent=0.001, trace_batch_nums=range(40))
        assert not ingest.events("level")

    def test_kinds_that_have_no_lower_level(self, ingest: IngestDouble) -> None:
        train(ingest, 30, kinds=["output"], budget_percent=0.001)
        assert [event.data["kinds"] for event in ingest.events("level")] == [["output"]]


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
