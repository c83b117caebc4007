"""Weight matrices all rows of which are alike: series `alike_rows`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def constant(model: nn.Module) -> None:
    for each in model.parameters():
        nn.init.constant_(each, 0.1)


def zeros(model: nn.Module) -> None:
    for each in model.parameters():
        nn.init.zeros_(each)


def one_layer(model: nn.Module) -> None:
    nn.init.zeros_(model.get_submodule("2").weight)  # type: ignore[arg-type]


def head(model: nn.Module) -> None:
    nn.init.zeros_(model.get_submodule("4").weight)  # type: ignore[arg-type]


def train(ingest: IngestDouble, model: nn.Module, given: Callable[[], Tensor], steps: int = 4, **options: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(given()), torch.randint(0, 3, (8,))).backward()
            optimizer.step()


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize(
    ("initialise", "share"), [(constant, 1.0), (zeros, 1.0), (one_layer, 0.0), (head, 0.0), (lambda model: None, 0.0)]
)
def test_it_is_read_once(
    ingest: IngestDouble, initialise: Callable[[nn.Module], None], share: float, backend: str
) -> None:
    torch.manual_seed(0)
    model = net()
    initialise(model)
    train(ingest, model, lambda: torch.randn(8, 4), backend=backend)
    assert ingest.series("alike_rows") == {1: share}


def test_tables_and_what_is_frozen_are_left_out(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[2].weight)
    model[2].weight.requires_grad_(False)
    train(ingest, model, lambda: torch.randint(0, 5, (8, 2)))
    assert ingest.series("alike_rows") == {1: 0.0}


def test_of_one_matrix_nothing_is_said(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    train(ingest, model, lambda: torch.randn(8, 4))
    assert ingest.series("alike_rows") == {}
