"""What an optimizer's step does with single elements."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.hooks.optimizers.update_samples import of_one_device
from tests.agent.ingest_double import IngestDouble

NAMES = ("sampled_count", "pushed_count", "unmoved_count", "zero_weight_count")


class Own(torch.optim.SGD):
    """Nobody knows how it rounds."""


def counts(ingest: IngestDouble, fqn: str) -> dict[int, tuple[float, ...]]:
    cells = ingest.tensors()[fqn, "grad", 0]
    return {step: tuple(cell.get(name, 0.0) for name in NAMES) for step, cell in cells.items() if cell["sampled_count"]}


def train(ingest: IngestDouble, backend: str, optimizer: Any = torch.optim.SGD, steps: int = 36) -> nn.Module:
    """Of the weight one row in four gets no gradient, and the bias's is taken away."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    updates = optimizer(model.parameters(), lr=1e-5)
    with rangewatch.attach(model, updates, url=ingest.url, backend=backend):
        for _ in range(steps):
            updates.zero_grad()
            model(torch.ones(2, 3, dtype=torch.bfloat16))[:, 1:].sum().backward()
            model.bias.grad.zero_()
            updates.step()
    return model


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_elements_around_the_optimizers_step(ingest: IngestDouble, backend: str) -> None:
    model = train(ingest, backend)
    assert (model.weight == 1).all(), "rounded away"
    assert counts(ingest, "weight") == dict.fromkeys((1, 2, 4, 8, 16, 32), (12.0, 9.0, 9.0, 0.0))
    assert counts(ingest, "bias") == dict.fromkeys((1, 2, 4, 8, 16, 32), (4.0, 0.0, 0.0, 4.0))


def test_an_optimizer_of_ones_own_may_keep_what_is_lost(ingest: IngestDouble) -> None:
    train(ingest, "auto", Own, steps=3)
    assert counts(ingest, "weight") == dict.fromkeys((1, 2), (12.0, 9.0, 0.0, 0.0))


class Survey(nn.Module):
    """Places in a far frame, and a net."""

    def __init__(self, count: int, origin: float) -> None:
        super().__init__()
        self.places = nn.Parameter(origin + torch.arange(2.0 * count).view(count, 2))
        self.net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))

    def forward(self) -> torch.Tensor:
        return self.net(self.places - 5e6).square().mean()


def survey(
    ingest: IngestDouble, make: Any, *, count: int = 3, origin: float = 5e6, backend: str = "auto"
) -> dict[str, float]:
    """What was read of the places at step 2."""
    torch.manual_seed(0)
    model = Survey(count, origin)
    updates = make(model.parameters())
    with rangewatch.attach(model, updates, url=ingest.url, backend=backend):
        for _ in range(4):
            updates.zero_grad()
            model().backward()
            updates.step()
    return dict(ingest.tensors()["places", "grad", 0][2])


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("count", [3, 3_000], ids=["a small one", "a large one"])
def test_updates_in_float32_that_are_rounded_away_far_from_zero(ingest: IngestDouble, backend: str, count: int) -> None:
    """At 5 million neighbours are 0.5 apart. Of the large one, one of 81 parameters, the beginning is read."""
    cell = survey(ingest, lambda each: torch.optim.Adam(each, lr=0.05), count=count, backend=backend)
    sampled = min(2 * count, 4_096)
    assert (cell["sampled_count"], cell["unmoved_count"]) == (sampled, cell["pushed_count"])
    assert cell["pushed_count"] > 0.9 * sampled
    assert cell["unmoved_amin"] == 5e6 and cell["sampled_rate"] == 0.05


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0)], ids=["a number", "a tensor"])
def test_updates_in_float32_that_are_not_rounded_away(ingest: IngestDouble, rate: Any) -> None:
    cell = survey(ingest, lambda each: torch.optim.Adam(each, lr=rate, foreach=False))
    assert cell["pushed_count"] > 0 and cell["unmoved_count"] == 0
    assert cell["unmoved_amin"] == math.inf and cell["sampled_rate"] == 1.0


def test_at_a_rate_of_zero_nothing_is_rounded_away(ingest: IngestDouble) -> None:
    cell = survey(ingest, lambda each: torch.optim.Adam(each, lr=0.0))
    assert cell["pushed_count"] > 0 and cell["unmoved_count"] == 0 and cell["sampled_rate"] == 0


class Decaying(torch.optim.Optimizer):
    """Nothing but a decay, of matrices; the rest is left alone."""

    def __init__(self, parameters: Any, share: float) -> None:
        super().__init__(parameters, {"share": share})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                each.mul_(1 - group["share"])


def steps_of(ingest: IngestDouble, optimizer: Any, dtype: torch.dtype, *, watched: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 80), nn.Tanh(), nn.Linear(80, 80), nn.Tanh(), nn.Linear(80, 2)).to(dtype)
    updates = optimizer(model.parameters())
    handle = rangewatch.attach(model, updates, url=ingest.url) if watched else None
    for _ in range(10):
        updates.zero_grad()
        model(torch.ones(4, 3, dtype=dtype)).square().sum().backward()
        updates.step()
    if handle is not None:
        handle.detach()
    return model


def test_what_a_decay_takes_of_the_weights(ingest: IngestDouble) -> None:
    steps_of(ingest, lambda parameters: Decaying(parameters, 0.1), torch.float32)
    fraction, decay = (dict(ingest.series(name)) for name in ("update_fraction", "decay_fraction"))
    expected = dict.fromkeys((1, 2, 4, 8), pytest.approx(0.1, rel=1e-4))
    assert fraction == expected and decay == expected


def test_an_update_that_does_not_point_against_the_weights_is_no_decay(ingest: IngestDouble) -> None:
    steps_of(ingest, lambda parameters: torch.optim.Adam(parameters, 1e-3), torch.float32)
    assert set(dict(ingest.series("decay_fraction")).values()) == {0.0}
    assert all(1e-3 < each < 0.1 for each in dict(ingest.series("update_fraction")).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_comparing_changes_no_weight(ingest: IngestDouble, dtype: torch.dtype) -> None:
    """`float()` of a float32 weight is that weight."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, 1e-2)

    watched, alone = steps_of(ingest, make, dtype), steps_of(ingest, make, dtype, watched=False)
    for a, b in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)


def test_matrices_of_one_device_are_compared() -> None:
    host, other = (nn.Linear(3, 3, device=device).weight for device in ("cpu", "meta"))
    assert of_one_device([other, host, other], lambda each: True) == [other, other]
    assert of_one_device([other, host, other, host], lambda each: each is host) == [host, host]
    assert of_one_device([other], lambda each: False) == []
