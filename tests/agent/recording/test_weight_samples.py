"""Weights that change between the updates."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


def train(ingest: IngestDouble, between: Callable[[nn.Module, int], None], steps: int = 6) -> dict[int, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(steps):
            between(model, step)
            model(torch.randn(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return dict(ingest.series("weights_written"))


def add(model: nn.Module, value: float) -> None:
    for each in model.parameters():
        each.data.add_(value)  # torch's count of changes in place does not see this


def test_a_write_between_two_steps(ingest: IngestDouble) -> None:
    written = train(ingest, lambda model, step: add(model, 0.25) if step == 3 else None)
    assert written == {1: 0.0, 2: 0.0, 3: pytest.approx(0.25), 4: 0.0, 5: 0.0}
    assert [each.data for each in ingest.events("sampled_weights")][-1] == {
        "names": ["2.bias", "0.bias"], "are_held": True,
    }  # fmt: skip


def test_weights_that_are_rounded_to_another_dtype(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for dtype in (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32):
            model.to(dtype)
            model(torch.randn(2, 3, dtype=dtype)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert set(ingest.series("weights_written").values()) == {0.0}


def test_weights_that_are_taken_back_before_the_next_step(ingest: IngestDouble) -> None:
    def evaluate(model: nn.Module, step: int) -> None:
        kept = [each.detach().clone() for each in model.parameters()]
        add(model, 0.25)
        with torch.no_grad():
            model(torch.ones(1, 3))
        for each, value in zip(model.parameters(), kept, strict=True):
            each.data.copy_(value)

    assert set(train(ingest, evaluate).values()) == {0.0}


def test_updates_by_hand_that_end(ingest: IngestDouble) -> None:
    """Of weights that no optimizer has, each change is one between forwards."""
    torch.manual_seed(0)
    model = nn.Linear(3, 8)
    with rangewatch.attach(model, url=ingest.url) as handle:
        for step in range(6):
            model.zero_grad()
            model(torch.randn(2, 3)).square().sum().backward()
            if step < 3:
                with torch.no_grad():
                    for each in model.parameters():
                        each -= 0.01 * each.grad
            handle.step()
    written = ingest.series("weights_written")
    assert [step for step, change in written.items() if change > 0] == [1, 2, 3]
    assert [each.data["are_held"] for each in ingest.events("sampled_weights")] == [False]


def test_how_far_an_update_moved_the_first_of_them(ingest: IngestDouble) -> None:
    """Its own part, whatever code wrote to it in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    moved = {}
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(7):
            if step == 3:
                add(model, 0.25)
            if step == 5:  # second moments are lost, as from a checkpoint without them
                for state in optimizer.state.values():
                    state["exp_avg_sq"].zero_()
            model(torch.randn(2, 3)).square().sum().backward()
            before = model[2].bias.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            moved[step] = float((model[2].bias.detach() - before).abs().max())
    update = ingest.series("sampled_update")
    assert {step: update[step] for step in range(1, 7)} == {step: moved[step] for step in range(1, 7)}
    assert moved[3] < 0.01 and moved[5] > 2 * moved[4]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_what_the_optimizer_is_given(ingest: IngestDouble, optimizer: type[torch.optim.Optimizer]) -> None:
    """Of the last small parameter, after all that the loop makes of it; nothing where it is given none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    updated = optimizer(model.parameters(), lr=1e-9)
    given = {}
    with rangewatch.attach(model, updated, url=ingest.url):
        for step in range(6):
            model(torch.randn(2, 3)).square().sum().backward()
            if step == 2:
                for each in model.parameters():
                    assert each.grad is not None
                    each.grad.mul_(1e6)
            if step == 4:
                model[2].bias.grad = None
            else:
                assert model[2].bias.grad is not None
                given[step] = float(model[2].bias.grad.abs().max())
            updated.step()
            updated.zero_grad()
    known = ingest.series("sampled_gradient")
    assert {step: value for step, value in known.items() if step} == {step: given[step] for step in (1, 2, 3, 5)}
    assert given[2] > 1e5 * given[1]


def test_a_closure_has_yet_to_make_the_gradient(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 8)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return float(loss.detach())

    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(3):
            optimizer.step(closure)
    assert not ingest.series("sampled_gradient")


def test_a_model_of_which_a_copy_is_trained(ingest: IngestDouble) -> None:
    """It is never called, and its optimizer has nothing to step with: what is known of it is that it stays."""
    model = nn.Linear(3, 8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(4):
            copy.deepcopy(model)(torch.randn(2, 3)).square().sum().backward()
            optimizer.step()
    assert set(ingest.series("sampled_update").values()) == {0.0}
    assert [each.data["are_held"] for each in ingest.events("sampled_weights")] == [True]
