"""The collectors' thread: what it finds travels with the batches, or on its own; what fails is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch import collectors
from rangewatch.collectors.runner import joined
from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Events
from rangewatch.wire.records import Samples
from tests.agent.ingest_double import IngestDouble


class Planted:
    """A collector that counts its rows."""

    name = "planted"

    def __init__(self) -> None:
        self.rows = 0
        self.threads: set[str] = set()
        self.steps: list[int] = []
        self.stopped = threading.Event()
        self.ends = 0

    def start(self, events: Events) -> None:
        events.add("gpu", "no GPU here", {"available": False})

    def collect(self, step: int) -> Sequence[Samples]:
        self.threads.add(threading.current_thread().name)
        self.steps.append(step)
        self.rows += 1
        at = np.array([time.time_ns()])
        return [Samples("gpu", "GPU-1", at, {"row": np.array([self.rows - 1.0])}), Samples("host", "", at[:0], {})]

    def stop(self) -> None:
        self.ends += 1
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


class Entry(NamedTuple):
    """In place of a collector's class: it is made already."""

    name: str
    one: Planted

    def __call__(self, *_: object) -> Planted:
        return self.one


def plant(monkeypatch: pytest.MonkeyPatch, *made: Planted) -> None:
    names = dict(zip(("gpu", "host"), made, strict=False))
    monkeypatch.setattr(collectors, "ALL", tuple(Entry(name, one) for name, one in names.items()))


def attached(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch, *made: Planted) -> rangewatch.Handle:
    plant(monkeypatch, *made)
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
    assert broken.ends == planted.ends == 1, "what it has set up in the process is taken away, once"
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
        plant(monkeypatch, *made)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            losses = []
            for _ in range(20):
                loss = model(torch.randn(8, 4)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    assert train(Planted()) == train()


def test_what_is_not_to_be_collected_is_not(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, host = Planted(), Planted()
    plant(monkeypatch, gpu, host)
    with rangewatch.attach(nn.Linear(4, 2), url=ingest.url, collect=["host"]):
        wait_for(lambda: host.rows > 1)
    assert not gpu.rows
    with rangewatch.attach(nn.Linear(4, 2), url=ingest.url, collect=()):
        assert all(thread.name != "rangewatch-collectors" for thread in threading.enumerate())
    with pytest.raises(ValueError, match="collect"):
        rangewatch.attach(nn.Linear(4, 2), collect=["gpus"])


def test_many_small_tables_travel_as_few() -> None:
    def row(at: int, key: str = "GPU-1", **about: int) -> Samples:
        return Samples("gpu", key, np.array([at]), {"x": np.array([float(at)])}, about)

    tables = [row(1), row(1, "GPU-2"), row(2), row(3), row(2), row(4, limit=1), row(5, limit=1)]
    found = {tuple(each.times_ns): each for each in joined(tables)}
    assert sorted(found) == [(1,), (1, 2, 3), (2,), (4, 5)]
    assert found[1, 2, 3].columns["x"].tolist() == [1.0, 2.0, 3.0] and found[4, 5].about == {"limit": 1}


@pytest.mark.usefixtures("faults_are_counted")
def test_one_that_does_not_start_is_stopped(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unwilling(Planted):
        def start(self, events: Events) -> None:
            raise OSError("no driver")

    unwilling = Unwilling()
    attached(ingest, monkeypatch, unwilling).detach()
    assert unwilling.ends == 1 and unwilling.rows == 0


def test_an_attach_that_fails_leaves_no_collector(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of collectives holds a place of which there is one in the process."""
    planted = Planted()

    def broken(*args: object) -> None:
        raise RuntimeError("an odd model")

    monkeypatch.setattr("rangewatch.api.attachment._add_hooks", broken)
    with pytest.raises(RuntimeError, match="an odd model"):
        attached(ingest, monkeypatch, planted)
    assert planted.ends == 1


def test_faults_of_a_collectors_own_guard_are_told(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted()
    planted.guard = Guard()  # type: ignore[attr-defined]
    planted.guard.counts["a collective begins"] = 3  # type: ignore[attr-defined]
    with attached(ingest, monkeypatch, planted) as handle:
        assert handle.stats()["faults"] == {"a collective begins": 3}
    assert ingest.events("fault")[-1].data == {"a collective begins": 3}
