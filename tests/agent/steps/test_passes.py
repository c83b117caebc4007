"""Forwards that no backward follows are kept apart from the step beside which they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.hooks.compiled import IS_SUPPORTED
from tests.agent.ingest_double import IngestDouble

NAN = float("nan")
Without = Callable[[], AbstractContextManager[Any]]


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


WAYS: dict[str, tuple[bool, Without]] = {
    "eval and no_grad": (True, torch.no_grad),
    "eval and inference_mode": (True, torch.inference_mode),
    "eval alone": (True, contextlib.nullcontext),
    "no_grad alone": (False, torch.no_grad),
    "inference_mode alone": (False, torch.inference_mode),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["auto", "device"])
def test_an_evaluation_is_no_part_of_the_step(ingest: IngestDouble, way: str, backend: str) -> None:
    evaluates, without = WAYS[way]
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, backend=backend) as handle:
        for step in range(4):
            train(model, optimizer)
            model.train(not evaluates)
            with without():
                for value in (1.0, NAN if step == 1 else 1.0):
                    model(torch.full((3, 2), value))
            model.train()
        train(model, optimizer)
        assert handle.stats()["skipped"]["eval_forward"] == 4 * 2 * 3
    for cells in (ingest.tensors()[name, "output", 0] for name in ("", "0", "1")):
        assert {(cell["call_count"], cell["numel"] % 3 > 0, cell["nan_count"]) for cell in cells.values()} == {
            (1.0, True, 0.0)
        }
    assert ingest.series("eval_passes") == {1: 2.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert ingest.series("eval_nonfinite") == {1: 0.0, 2: 3.0, 3: 0.0, 4: 0.0}, "said beside the step, not in it"
    assert not ingest.events("nonfinite")
    assert sorted(ingest.series("forward_s")) == [1, 2, 3, 4]


@pytest.mark.skipif(not IS_SUPPORTED, reason="from torch 2.13")
@pytest.mark.parametrize("way", WAYS)
def test_of_a_compiled_model(ingest: IngestDouble, way: str) -> None:
    evaluates, without = WAYS[way]
    torch._dynamo.reset()
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            train(compiled, optimizer)
            model.train(not evaluates)
            with without():
                compiled(torch.full((1, 2), 1e9))
            model.train()
    cells = ingest.tensors()["0", "output", 0]
    assert {(cell["call_count"], cell["amax"] < 1e6) for cell in cells.values()} == {(1.0, True)}


def test_who_trains_in_eval_is_recorded(ingest: IngestDouble) -> None:
    """From the step after the change on, where it was trained in `train()` before."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model.eval(), optimizer, url=ingest.url):
        train(model, optimizer)
        for is_training in (True, False):
            model.train(is_training)
            for _ in range(3):
                train(model, optimizer)
    assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1, 2, 3, 4, 5, 6]


def test_a_change_to_eval_costs_one_step_at_most(ingest: IngestDouble) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(6):
            model.train(step < 3)
            train(model, optimizer)
    assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1, 2, 4, 5]
    assert sorted(ingest.tensors()["0.weight", "grad", 0]) == list(range(6))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = two_layers()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_reentrant_checkpoint_is_training(ingest: IngestDouble, is_whole: bool) -> None:
    model = two_layers() if is_whole else Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(1, 2, requires_grad=True)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(3):
            (checkpoint(model, x, use_reentrant=True) if is_whole else model(x)).sum().backward()
            optimizer.step()
    assert sorted(ingest.tensors()["0" if is_whole else "inner.0", "output", 0]) == [0, 1, 2]


def test_a_training_without_any_backward(ingest: IngestDouble) -> None:
    """As evolution strategies and zeroth-order methods do it."""
    model = two_layers()
    with rangewatch.attach(model, url=ingest.url) as handle:
        for _ in range(4):
            with torch.no_grad():
                model(torch.ones(1, 2))
            handle.step()
    assert sorted(ingest.tensors()["0", "output", 0]) == [1, 2, 3]


def test_an_evaluation_that_raises_ends_there(ingest: IngestDouble) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(2):
            with torch.no_grad(), pytest.raises(RuntimeError):
                model(torch.ones(1, 7))
            train(model, optimizer)
    assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1]
    assert ingest.series("eval_passes") == {0: 1.0, 1: 1.0}


def test_a_part_that_runs_without_gradients_is_part_of_the_forward(ingest: IngestDouble) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.encoder(x)
            return self.head(x)  # type: ignore[no-any-return]

    model = Frozen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(2):
            train(model, optimizer)
    assert sorted(ingest.tensors()["encoder", "output", 0]) == [0, 1]


def test_an_evaluation_in_train_mode_brings_nan_into_running_statistics(ingest: IngestDouble) -> None:
    """What is read after it: by a batch that is finite, one that is not, and in `eval()`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    held = torch.randn(5, 3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(8):
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in (1, 3, 5):
                model.train(step != 5)
                with torch.no_grad():
                    model(held * (float("nan") if step == 3 else 1.0))
                model.train()
    assert ingest.series("bad_norms") == {2: 0.0, 4: 1.0}
