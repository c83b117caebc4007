"""Whether the classes of a batch are mixed, by the targets that a cross entropy keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


def train(ingest: IngestDouble, loss: Callable[[Tensor, int], Tensor], *, backend: str = "auto", width: int = 5) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, backend=backend):
        for step in range(20):
            loss(model(torch.randn(16, 3)), step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ingest.series("target_share"), ingest.series("target_class")


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_mixed_batches_and_one_of_one_class(ingest: IngestDouble, backend: str, factor: float) -> None:
    def loss(out: Tensor, step: int) -> Tensor:
        targets = torch.full((16,), 3) if step >= 8 else torch.tensor([2, 0, 1, 2] * 4)
        return F.cross_entropy(out, targets) * factor

    share, of = train(ingest, loss, backend=backend)
    assert share == {0: 0.5, 8: 1.0, 16: 1.0}
    assert of == {0: 2.0, 8: 3.0, 16: 3.0}


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out.pow(2).mean(),
        lambda out: F.cross_entropy(out[:4], torch.zeros(4, dtype=torch.int64)),  # few rows are of one class by chance
        lambda out: F.cross_entropy(out, out.detach().softmax(-1)),
        lambda out: F.cross_entropy(out.reshape(2, 5, 8), torch.zeros(2, 8, dtype=torch.int64)),  # of each point
        lambda out: F.binary_cross_entropy_with_logits(out, torch.zeros_like(out)),
    ],
    ids=["no classes", "few rows", "shares of classes", "classes of points", "yes or no"],
)
def test_losses_of_which_that_is_not_asked(ingest: IngestDouble, loss: Callable[[Tensor], Tensor]) -> None:
    assert train(ingest, lambda out, step: loss(out)) == ({}, {})


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_how_many_targets_count(ingest: IngestDouble, backend: str, reduction: str) -> None:
    """Those that are ignored do not; of points of a picture each is one."""

    def loss(out: Tensor, step: int) -> Tensor:
        targets = torch.zeros(2, 8, dtype=torch.int64)
        targets[:, : 5 if step < 8 else 2] = -100
        return 0.5 * F.cross_entropy(out.reshape(2, 5, 8), targets, reduction=reduction)

    train(ingest, loss, backend=backend)
    counts = ingest.series("target_count")
    assert counts == {each: 6.0 if each < 8 else 12.0 for each in range(0, 20, 4 if backend == "device" else 1)}


def test_targets_of_which_none_are_counted(ingest: IngestDouble) -> None:
    """A loss of each row, which the loop adds up itself."""
    labels = torch.zeros(16, dtype=torch.int64)
    train(ingest, lambda out, step: F.cross_entropy(out, labels, reduction="none").mean())
    assert ingest.series("target_count") == {}


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits,
        lambda out, y: (F.mse_loss(out, y, reduction="none") * torch.rand(16, 1)).sum() / 16 + 0.1 * out.abs().mean(),
    ],
    ids=["squared", "smooth", "huber", "yes or no", "weighted, beside another term"],
)  # fmt: skip
def test_how_large_the_targets_are(
    ingest: IngestDouble, backend: str, loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    train(ingest, lambda out, step: loss(out, torch.full((16, 5), 0.5 if step < 8 else 1.0)), backend=backend)
    sizes = ingest.series("target_rms")
    assert sizes == {each: 0.5 if each < 8 else 1.0 for each in range(0, 20, 4 if backend == "device" else 1)}


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: F.cross_entropy(out, torch.zeros(16, dtype=torch.int64)),
        lambda out: (out - 1).pow(2).mean(),
        lambda out: F.mse_loss(out, out.detach() * 2 + out),
        lambda out: sum(((out * each).mean() for each in range(40)), F.mse_loss(out, torch.ones(16, 5))),
    ],
    ids=["classes", "by hand", "targets with a gradient", "behind many terms"],
)
def test_losses_that_keep_no_size(ingest: IngestDouble, loss: Callable[[Tensor], Tensor]) -> None:
    train(ingest, lambda out, step: loss(out))
    assert ingest.series("target_rms") == {}


def test_targets_in_float64(ingest: IngestDouble) -> None:
    """Torch takes no norm of them in float32; and where it is tried again and again no loss is recorded any more."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(8):
            F.mse_loss(model(torch.randn(16, 3).double()), torch.full((16, 1), 0.5).double()).backward()
            optimizer.step()
    assert ingest.series("target_rms") == dict.fromkeys(range(8), 0.5) and len(ingest.series("loss")) == 8


def test_a_second_term_with_targets_of_its_own(ingest: IngestDouble) -> None:
    """From the step on at which it comes: the targets that were there have not changed."""
    first, second = torch.full((16, 5), 0.5), torch.full((16, 5), 20.0)
    train(
        ingest,
        lambda out, step: F.mse_loss(out, second) * 0.01 + F.mse_loss(out, first) if step >= 8
        else F.mse_loss(out, first),
    )  # fmt: skip
    assert ingest.series("target_rms") == dict.fromkeys(range(8), 0.5)
