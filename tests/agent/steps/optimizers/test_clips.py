"""Clips by torch's own function: their norm, and whether gradients were unscaled before."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

import rangewatch
from tests.agent.ingest_double import IngestDouble

needs_its_own_function = pytest.mark.skipif(not hasattr(clip_grad, "_clip_grads_with_norm_"), reason="torch before 2.6")


def train(ingest: IngestDouble, steps: int, *, unscaled: bool, scale: float = 1024.0) -> list[float]:
    torch.manual_seed(0)
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    norms = []
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
        for _ in range(steps):
            scaler.scale(model(torch.ones(3, 4)).square().sum()).backward()
            if unscaled:
                scaler.unscale_(optimizer)
            norms.append(float(clip_grad_norm_(model.parameters(), 0.5)))
            other(torch.ones(1, 4)).sum().backward()
            clip_grad_norm_(other.parameters(), 0.5)  # of a model that is not attached
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return norms


@needs_its_own_function
def test_the_norm_of_each_step_and_no_event_where_gradients_are_unscaled(ingest: IngestDouble) -> None:
    own = clip_grad._clip_grads_with_norm_
    norms = train(ingest, 20, unscaled=True)
    assert ingest.series("clipped_norm") == {step: pytest.approx(each) for step, each in enumerate(norms)}
    assert ingest.events("clipping") == []
    assert clip_grad._clip_grads_with_norm_ is own


@needs_its_own_function
def test_scaled_gradients_that_are_clipped(ingest: IngestDouble) -> None:
    train(ingest, 20, unscaled=False)
    (event,) = ingest.events("clipping")
    assert (event.step, event.data) == (
        15,
        {"max_norm": 0.5, "is_scaled": True, "steps": 16, "early_steps": 0, "far_steps": 16},
    )


@needs_its_own_function
def test_a_limit_that_is_not_above_0_is_sent_at_once(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(12):
            model(torch.ones(3, 4)).square().sum().backward()
            clip_grad_norm_(model.parameters(), 0.5 - 0.1 * step if step < 8 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
    sent = [(each.step, round(each.data["max_norm"], 3)) for each in ingest.events("clipping")]
    assert sent == [(5, 0.0), (8, 1.0)]


@needs_its_own_function
def test_inside_a_compiled_graph_nothing_is_called(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 2)
    with rangewatch.attach(model, torch.optim.SGD(model.parameters(), 1e-3), url=ingest.url):
        model(torch.ones(3, 4)).sum().backward()
        torch.compile(lambda: clip_grad_norm_(model.parameters(), 0.5), fullgraph=True, backend="eager")()


@needs_its_own_function
@pytest.mark.parametrize("where", ["before", "both", "now and then", "after"])
def test_a_clip_before_the_backward(ingest: IngestDouble, where: str) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(40):
            optimizer.zero_grad()
            if where in ("before", "both") or (where == "now and then" and step % 8):
                clip_grad_norm_(model.parameters(), 0.5)
            model(torch.ones(3, 4)).square().sum().backward()
            if where in ("after", "both") or (where == "now and then" and not step % 8):
                clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    sent = [(each.step, each.data["early_steps"]) for each in ingest.events("clipping")]
    assert sent == ([(15, 16)] if where == "before" else [])


@needs_its_own_function
def test_an_update_at_the_top_of_the_next_iteration(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, url=ingest.url) as handle:
        for step in range(40):
            if step:
                clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            handle.step()
    assert ingest.events("clipping") == []


@needs_its_own_function
@pytest.mark.parametrize(("most", "sent"), [(1e-4, [(15, 16)]), (0.5, []), (1e3, [])])
def test_a_limit_that_leaves_next_to_nothing(ingest: IngestDouble, most: float, sent: list[tuple[int, int]]) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            clip_grad_norm_(model.parameters(), most)
            optimizer.step()
    assert [(each.step, each.data["far_steps"]) for each in ingest.events("clipping")] == sent
