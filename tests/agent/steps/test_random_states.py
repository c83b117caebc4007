"""Random numbers that are the same again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.wire.events import RepeatedRandom, read
from tests.agent.ingest_double import IngestDouble

EPOCH = 6


def said(ingest: IngestDouble, before: Callable[[int], Any], words: bool = False) -> list[RepeatedRandom]:
    """What is sent of a loop that draws its batches, and calls `before` with the number of the step."""
    model = nn.Sequential(nn.Embedding(50, 2) if words else nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(4 * EPOCH):
            before(step)
            model(torch.randint(0, 50, (8,)) if words else torch.randn(4, 2)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [known for each in ingest.events("repeated_random") if (known := read(RepeatedRandom, each.data))]


def seed_each(epoch: int, seed: Callable[[int], int] = lambda step: 3) -> Callable[[int], Any]:
    return lambda step: None if step % epoch else torch.manual_seed(seed(step))


@pytest.mark.parametrize("words", [False, True])
def test_a_seed_that_is_set_in_each_epoch(ingest: IngestDouble, words: bool) -> None:
    assert said(ingest, seed_each(EPOCH), words) == [RepeatedRandom(EPOCH, EPOCH, True if words else None)]


def test_an_evaluation_that_sets_it(ingest: IngestDouble) -> None:
    def evaluate(step: int) -> None:
        if step and step % EPOCH == 0:
            torch.manual_seed(3)
            torch.randn(16)

    assert said(ingest, evaluate) == [RepeatedRandom(2 * EPOCH, EPOCH)], "the second time it is the first one's"


def test_seeds_of_each_epochs_own(ingest: IngestDouble) -> None:
    assert said(ingest, seed_each(EPOCH, lambda step: step)) == []


def test_the_same_noise_in_each_step(ingest: IngestDouble) -> None:
    """It may be meant, and there is no order in it."""
    assert said(ingest, seed_each(1)) == []


def test_an_evaluation_that_puts_the_state_back(ingest: IngestDouble) -> None:
    def evaluate(step: int) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            torch.randn(16)

    assert said(ingest, evaluate) == []


def test_other_batches_with_the_same_dropout(ingest: IngestDouble) -> None:
    """Of whole numbers it is known that they are others."""
    own = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Embedding(50, 2), nn.Dropout(0.5), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(4 * EPOCH):
            seed_each(EPOCH)(step)
            model(torch.randint(0, 50, (8,), generator=own)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (known,) = ingest.events("repeated_random")
    assert known.data["are_inputs_same"] is False


def test_what_is_the_same_in_each_step_is_no_batch(ingest: IngestDouble) -> None:
    """As the nodes of a graph, all of which are given each time."""
    model = nn.Sequential(nn.Embedding(50, 2), nn.Dropout(0.5), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(4 * EPOCH):
            seed_each(EPOCH)(step)
            model(torch.arange(50)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (known,) = ingest.events("repeated_random")
    assert known.data["are_inputs_same"] is None


def test_inside_a_transform(ingest: IngestDouble) -> None:
    """As gradients of single rows are taken: neither the state nor the rows can be read there."""
    model = nn.Sequential(nn.Embedding(50, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    weights = dict(model.named_parameters())

    def loss(weights: Any, row: Any) -> Any:
        return torch.func.functional_call(model, weights, (row,)).sum()

    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(4):
            rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randint(0, 50, (8, 3)))
            for name, weight in model.named_parameters():
                weight.grad = rows[name].mean(0)
            optimizer.step()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_words(ingest: IngestDouble) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 2)

        def forward(self, words: Any) -> Any:
            return self.table(words.to_padded_tensor(0)).square().sum()

    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(3):
            model(torch.nested.nested_tensor([torch.arange(2), torch.arange(3)])).backward()
            optimizer.step()
