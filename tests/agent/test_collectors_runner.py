"""The collectors' thread: what it finds travels with the batches, or on its own; what fails is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch import collectors, limits
from rangewatch.collectors.base import Told
from rangewatch.guard import Guard
from rangewatch.records import Samples
from tests.agent.ingest_double import IngestDouble


class Planted:
    """A collector that counts its rows."""

    name = "planted"

    def __init__(self) -> None:
        self.rows = 0
        self.threads: set[str] = set()
        self.steps: list[int] = []
        self.stopped = threading.Event()

    def start(self, told: Told) -> None:
        told("gpu", "no GPU here", {"available": False})

    def collect(self, step: int) -> Sequence[Samples]:
        self.threads.add(threading.current_thread().name)
        self.steps.append(step)
        self.rows += 1
        at = np.array([time.time_ns()])
        return [Samples("gpu", "GPU-1", at, {"row": np.array([self.rows - 1.0])}), Samples("host", "", at[:0], {})]

    def stop(self) -> None:
        self.stopped.set()


class Broken(Planted):
    name = "broken"

    def collect(self, step: int) -> Sequence[Samples]:
        super().collect(step)
        raise OSError("driver gone")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLLECT_EVERY_S", 0.01)
    monkeypatch.setattr(limits, "SAMPLES_EVERY_S", 0.05)


def attached(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch, *made: Planted) -> rangewatch.Handle:
    monkeypatch.setattr(collectors, "ALL", tuple((lambda *_, one=one: one) for one in made))
    return rangewatch.attach(nn.Linear(4, 2), url=ingest.url, ship_interval_s=3600)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # the test's own time limit ends it
        time.sleep(0.005)


def rows(ingest: IngestDouble) -> list[float]:
    found = [each for batch in ingest.batches for each in batch.samples]
    assert {each.source for each in found} <= {"gpu"}, "empty tables do not travel"
    return [value for each in found for value in each.columns["row"].tolist()]


def test_samples_of_a_step_that_does_not_end_arrive_all_the_same(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted()
    handle = attached(ingest, monkeypatch, planted)
    wait_for(lambda: len(rows(ingest)) >= 5)
    assert any(event.message == "no GPU here" for event in ingest.events("gpu"))
    handle.detach()
    assert planted.stopped.is_set() and planted.threads == {"rangewatch-collectors"}
    assert rows(ingest) == list(range(planted.rows)), "each once, in order, to the last"
    assert [batch.sequence for batch in ingest.batches] == list(range(len(ingest.batches)))


def test_they_travel_with_the_training_threads_batches(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SAMPLES_EVERY_S", 3600.0)
    planted = Planted()
    with attached(ingest, monkeypatch, planted) as handle:
        assert handle._agent is not None
        wait_for(lambda: planted.rows > 2)
        handle._agent.close_step()
        handle._agent.ship()
        wait_for(lambda: max(planted.steps) == 1)
    carriers = [batch for batch in ingest.batches if batch.samples]
    assert carriers[0].series and rows(ingest) == list(range(planted.rows))


@pytest.mark.usefixtures("faults_are_counted")
def test_a_broken_collector_is_left_alone_and_the_others_go_on(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, planted = Broken(), Planted()
    handle = attached(ingest, monkeypatch, broken, planted)
    wait_for(lambda: planted.rows > 3 * limits.FAULTS_TO_DETACH)
    stats = handle.stats()
    handle.detach()
    assert broken.rows == limits.FAULTS_TO_DETACH == stats["faults"]["collector broken"]
    assert len(rows(ingest)) == planted.rows


def test_what_waits_is_bounded_and_the_loss_is_counted(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SAMPLES_EVERY_S", 3600.0)
    monkeypatch.setattr(limits, "SAMPLE_ROWS", 3)
    planted = Planted()
    handle = attached(ingest, monkeypatch, planted)
    wait_for(lambda: handle.stats()["dropped"].get("samples_behind", 0) >= 4)
    dropped = handle.stats()
    handle.detach()
    assert len(rows(ingest)) <= 4 and rows(ingest)[-1] == planted.rows - 1, "the oldest goes first"
    assert dropped["faults"] == {}


@pytest.fixture
def faults_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "fatal", False)


def test_training_is_the_same_with_collectors(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*made: Planted) -> list[float]:
        torch.manual_seed(3)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        monkeypatch.setattr(collectors, "ALL", tuple((lambda *_, one=one: one) for one in made))
        with rangewatch.attach(model, optimizer, url=ingest.url):
            losses = []
            for _ in range(20):
                loss = model(torch.randn(8, 4)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    assert train(Planted()) == train()
