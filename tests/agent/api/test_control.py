"""Commands of the server: traces in full and other levels, obeyed between steps and acknowledged."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.core import limits
from rangewatch.core.options import OBSERVED_KINDS
from rangewatch.statistics import formats
from rangewatch.wire.records import MOMENTS
from tests.agent.ingest_double import IngestDouble

EVERY_KIND = set(OBSERVED_KINDS) - set(MOMENTS)
"""Plain SGD keeps nothing."""


class Loop:
    """A model in training, whose steps wait until the server has what the last one shipped."""

    def __init__(self, ingest: IngestDouble, **options: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ingest = ingest
        self.handle = rangewatch.attach(self.model, self.optimizer, url=ingest.url, ship_interval_s=0, **options)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *args: object) -> None:
        self.handle.detach()

    def steps(self, count: int) -> None:
        for _ in range(count):
            step = self.handle.stats()["step"]
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            while step not in self.ingest.series("wall_time_s"):  # the test's time limit ends this
                pass

    def obey(self, **command: Any) -> None:
        """Train until the command is answered for the last time, and a step more."""
        self.ingest.commands = [command]
        while not any(each["id"] == command["id"] and each["state"] != "accepted" for each in self.answers()):
            self.steps(1)  # the test's time limit ends this
        self.steps(1)

    def kinds_at(self, step: int, fqn: str | None = None) -> set[str]:
        return {kind for (name, kind, _), cells in self.ingest.tensors().items()
                if step in cells and fqn in (None, name)}  # fmt: skip

    def answers(self) -> list[dict[str, Any]]:
        return [event.data for event in self.ingest.events("command")]


def test_a_trace(ingest: IngestDouble) -> None:
    with Loop(ingest) as loop:
        loop.steps(2)
        loop.obey(id=7, kind="trace", steps=2, modules=[])
        assert loop.handle.stats()["faults"] == {}
        first = loop.answers()[0]["first_step"]
    assert loop.answers() == [
        {"id": 7, "state": "accepted", "first_step": first, "last_step": first + 1},
        {"id": 7, "state": "done", "last_step": first + 1},
    ]
    assert [loop.kinds_at(first + offset) == EVERY_KIND for offset in (-1, 0, 1, 2)] == [0, 1, 1, 0]
    assert loop.kinds_at(first + 2) == loop.kinds_at(1) == {"output", "grad_output", "grad"}
    cells = ingest.tensors()["0", "output", 0]
    assert [cells[first + offset]["full_numel"] > 0 for offset in (-1, 0, 1, 2)] == [False, True, True, False]


def test_a_trace_of_some_modules(ingest: IngestDouble) -> None:
    with Loop(ingest, level="grads") as loop:
        loop.steps(1)
        loop.obey(id=1, kind="trace", steps=1, modules=["2*"])
        step = loop.answers()[0]["first_step"]
        assert loop.kinds_at(step, "2") == {"input", "output", "grad_output"}
        assert loop.kinds_at(step, "2.weight") == {"grad", "reduced_grad", "weight", "update"}
        assert loop.kinds_at(step, "0") == set() and loop.kinds_at(step, "0.weight") == {"grad"}
        assert loop.kinds_at(step + 1) == {"grad"}


def test_a_trace_of_what_attach_excludes(ingest: IngestDouble) -> None:
    with Loop(ingest, exclude=["2"]) as loop:
        loop.obey(id=1, kind="trace", steps=1)
    assert "2" not in {fqn for fqn, _, _ in ingest.tensors()}, "what is excluded is never recorded"


def readings(ingest: IngestDouble) -> dict[str, set[int]]:
    """Steps at which a tensor was read for what would be left of it, by name and kind."""
    read: dict[str, set[int]] = defaultdict(set)
    for batch in ingest.batches:
        if batch.ranges is not None and formats.COUNT in batch.ranges.columns:
            for row, column in np.argwhere(batch.ranges.columns[formats.COUNT]).tolist():
                entry = ingest.catalogues[batch.catalogue][int(batch.ranges.tensors[row])]
                read[f"{entry.fqn} {entry.kind}"].add(int(batch.ranges.steps[column]))
    return read


def test_what_if_on_request(ingest: IngestDouble) -> None:
    with Loop(ingest) as loop:
        loop.steps(2)
        loop.obey(id=3, kind="whatif", modules=["2"])
        accepted, done = loop.answers()
        first, last = done["first_step"], done["last_step"]
        assert accepted == {"id": 3, "state": "accepted", "first_step": first}
        assert done == {"id": 3, "state": "done", "first_step": first, "last_step": last}
        loop.steps(3)
        assert loop.handle.stats()["faults"] == {}
    read = readings(ingest)
    assert read.keys() == {"2 output", "2 grad_output", "2.weight grad", "2.bias grad"}
    assert all(len(steps) == 1 and first <= min(steps) <= last for steps in read.values()), "once each"


def test_what_if_of_what_is_not_there(ingest: IngestDouble) -> None:
    with Loop(ingest) as loop:
        loop.steps(1)
        loop.obey(id=1, kind="whatif", modules=["nowhere"])
    (answer,) = loop.answers()
    assert answer["state"] == "refused" and "nowhere" in answer["reason"]


def test_what_if_on_a_device(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WHATIF_REQUEST_STEPS", 2)
    with Loop(ingest, backend="device") as loop:
        loop.steps(1)
        loop.obey(id=1, kind="whatif")
    assert [each["state"] for each in loop.answers()] == ["accepted", "refused"]
    assert "not in host memory" in loop.answers()[-1]["reason"]


def test_what_if_in_rounds(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WHATIF_FRACTION", 1.0)
    monkeypatch.setattr(limits, "WHATIF_STEP_FRACTION", 1e6)
    with Loop(ingest, whatif_every=4) as loop:
        loop.steps(12)
    read = readings(ingest)
    assert len(read) == 12 and set(map(frozenset, read.values())) == {frozenset({5, 9})}


def test_what_if_is_spread_over_steps_where_it_takes_long(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WHATIF_STEP_FRACTION", 0.0)
    with Loop(ingest, whatif_every=2) as loop:
        loop.steps(40)
    steps = [step for each in readings(ingest).values() for step in each]
    assert len(steps) == len(set(steps)) > 3, "one tensor a step"


def test_levels(ingest: IngestDouble) -> None:
    with Loop(ingest) as loop:
        loop.steps(1)
        for number, level in enumerate(["grads", "frames", "default"]):
            loop.obey(id=number, kind="level", level=level)
        firsts = [answer["first_step"] for answer in loop.answers()]
        assert [(answer["id"], answer["state"]) for answer in loop.answers()] == [(n, "done") for n in range(3)]
        assert loop.kinds_at(firsts[0] - 1) == {"output", "grad_output", "grad"}
        assert loop.kinds_at(firsts[0]) == {"grad"}
        assert loop.kinds_at(firsts[1]) == EVERY_KIND - {"weight", "update"}, "weights and updates have a cadence"
        assert loop.kinds_at(firsts[2]) == {"output", "grad_output", "grad"}


@pytest.mark.parametrize(
    "command",
    [{"kind": "trace", "steps": 0}, {"kind": "trace", "steps": 10**9}, {"kind": "level", "level": "loud"},
     {"kind": "dance"}, {"kind": "trace", "steps": 1, "modules": ["nowhere.*"]}],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_refused(ingest: IngestDouble, command: dict[str, Any]) -> None:
    with Loop(ingest) as loop:
        loop.obey(id=3, **command)
        assert [(answer["id"], answer["state"]) for answer in loop.answers()] == [(3, "refused")]
        assert loop.answers()[0]["reason"] and loop.kinds_at(1) == {"output", "grad_output", "grad"}


def test_what_cannot_be_read_is_ignored(ingest: IngestDouble) -> None:
    level = {"kind": "level", "level": "frames"}
    all_junk: tuple[list[Any], ...] = (
        ["trace"],
        [{"id": "x", "kind": "trace"}],
        [None, 4],
        [{}],
        [level | {"id": 10**30}, level | {"id": -1}],
        [{"id": 1, "kind": "trace", "steps": 1, "modules": ["*"] * 10_000}],
        [{"id": 1, "kind": "trace", "steps": 1, "modules": ["*" * 10_000]}],
        [{"id": 1, "kind": "x" * 10_000}],
    )
    with Loop(ingest) as loop:
        for number, junk in enumerate(all_junk):
            ingest.commands = junk
            loop.steps(2)
            loop.obey(id=9 + number, kind="level", level="grads")
            assert [answer["id"] for answer in loop.answers()] == [9 + each for each in range(number + 1)], junk
        assert loop.handle.stats()["faults"] == {}


@pytest.mark.slow
def test_a_module_that_is_compiled_keeps_its_graph(ingest: IngestDouble) -> None:
    """Fewer kinds, and more again: no graph beside the first."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with rangewatch.attach(model, url=ingest.url) as handle:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for level in ("default", "grads", "default"):
            handle._agent.recording.set_level(level)  # type: ignore[union-attr]
            handle._agent.hooks.record()  # type: ignore[union-attr]
            compiled(torch.ones(2, 4)).sum().backward()
            handle.step()
        assert counters["stats"]["unique_graphs"] == 1
    assert sorted(ingest.tensors()["0", "output", 0]) == sorted(ingest.tensors()["0", "grad_output", 0]) == [0, 2]
    assert sorted(ingest.tensors()["0.weight", "grad", 0]) == [0, 1, 2]
