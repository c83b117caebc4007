"""Weight matrices all rows of which are alike: series `alike_rows`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks.alike_rows import AT
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


def train(
    ingest: IngestDouble, model: nn.Module, given: Callable[[], Tensor], steps: int = AT + 2, **options: str
) -> None:
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
    assert ingest.series("alike_rows") == {AT - 1: share}


class Adapted(nn.Module):
    """A frozen layer, and a product of which the second factor alone is trained and begins with zeros."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, out).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, width), requires_grad=False)
        self.b = nn.Parameter(torch.zeros(out, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def test_zeros_that_a_warm_up_leaves_at_first_are_no_fault(ingest: IngestDouble) -> None:
    model = nn.Sequential(Adapted(4, 6), nn.ReLU(), Adapted(6, 6), nn.ReLU(), Adapted(6, 3))
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 4) / 100)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(AT + 2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
            schedule.step()
    assert list(ingest.series("alike_rows").values()) == [0.0]


def test_tables_and_what_is_frozen_are_left_out(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[2].weight)
    model[2].weight.requires_grad_(False)
    train(ingest, model, lambda: torch.randint(0, 5, (8, 2)))
    assert ingest.series("alike_rows") == {AT - 1: 0.0}


def test_of_one_matrix_nothing_is_said(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    train(ingest, model, lambda: torch.randn(8, 4))
    assert ingest.series("alike_rows") == {}
