"""A loss in which each prediction meets each target, by its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.steps.loss.loss_broadcast import loss_broadcast
from rangewatch.wire.events import LossBroadcast
from tests.agent.ingest_double import IngestDouble

ROWS = 8
Y = torch.rand(ROWS)
X = torch.randn(ROWS, 4)
MAPS = torch.rand(ROWS, 3, 5)

COLUMN, ROW, SQUARE = (ROWS, 1), (ROWS,), (ROWS, ROWS)

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")


def predicted(*shape: int) -> Tensor:
    """What a model gives: never a leaf."""
    return torch.randn(*shape, requires_grad=True) * 1.5


@pytest.mark.parametrize(
    ("loss", "other"),
    [
        (lambda p: F.mse_loss(p, Y), ROW),
        (lambda p: 1024 * F.mse_loss(p, Y, reduction="sum") / 4, ROW),
        (lambda p: F.smooth_l1_loss(p, Y), ROW),
        (lambda p: F.huber_loss(p, Y), ROW),
        (lambda p: F.l1_loss(p, Y), ()),
        (lambda p: ((p - Y) ** 2).mean(), ()),
        (lambda p: (Y - p).abs().sum(1).mean(), ()),
        (lambda p: F.mse_loss(p, Y, reduction="none").mean(), ROW),
        (lambda p: (F.softplus(p) - p * Y).mean(), ROW),
        (lambda p: -(Y * F.logsigmoid(p) + (1 - Y) * F.logsigmoid(-p)).mean(), ROW),
        (lambda p: F.poisson_nll_loss(p, Y), ROW),
        (lambda p: -torch.min(p.exp() * Y, p.exp().clamp(0.8, 1.2) * Y).mean(), ROW),
        (lambda p: F.mse_loss(p, Y) + 0.01 * p.square().mean() + (p @ Y[None, :3] - 1).square().mean(), ROW),
        (lambda p: F.mse_loss(p.bfloat16().float(), Y), ROW),
        (lambda p: F.mse_loss(p[:, :, None, None].flatten(1), Y), ROW),
        (lambda p: F.smooth_l1_loss(p.expand(ROWS, 3).gather(1, torch.zeros(ROWS, 1).long()), Y), ROW),
    ],
)
def test_each_prediction_meets_each_target(loss: Callable[[Tensor], Tensor], other: tuple[int, ...]) -> None:
    known = loss_broadcast(loss(predicted(*COLUMN)).grad_fn)
    assert known is not None and (known.prediction, known.other, known.result) == (COLUMN, other, SQUARE)


def test_a_target_that_has_one_dimension_more() -> None:
    known = loss_broadcast(F.mse_loss(predicted(ROWS), Y[:, None]).grad_fn)
    assert known == LossBroadcast("MseLoss", ROW, COLUMN, SQUARE)


def test_maps_of_one_channel() -> None:
    known = loss_broadcast(F.mse_loss(predicted(ROWS, 1, 3, 5), MAPS).grad_fn)
    assert known == LossBroadcast("MseLoss", (ROWS, 1, 3, 5), (ROWS, 3, 5), (ROWS, ROWS, 3, 5))


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: F.mse_loss(p, Y[:, None]),
        lambda p: F.mse_loss(p.squeeze(1), Y),
        lambda p: F.softplus(-(p - p.T)).mean(),
        lambda p: F.softplus(p.squeeze(1).unsqueeze(0) - p.squeeze(1).unsqueeze(1)).mean(),
        lambda p: (p.squeeze(1)[:, None] - p.squeeze(1).detach()[None]).relu().mean(),
        lambda p: (p.squeeze(1).view(-1, 1) - p.squeeze(1).detach().view(1, -1)).relu().mean(),
        lambda p: (p - Y).abs().mean() - 0.5 * (p - p.T).abs().mean(),
        lambda p: (-((p - Y) ** 2)).exp().mean(),
        lambda p: (p - Y).abs().min(1).values.mean(),
        lambda p: (F.mse_loss(p.squeeze(1), Y, reduction="none") * Y).mean(),
        lambda p: F.binary_cross_entropy_with_logits(p, torch.ones(1, 1).expand(ROWS, 1)),
        lambda p: ((p - torch.ones(1)) ** 2).mean() + ((p - torch.ones(())) ** 2).mean(),
        lambda p: (p.expand(ROWS, 5) - torch.rand(ROWS, 5)).abs().mean(),
        lambda p: torch.max(0.1 * (p - torch.rand(3)), -0.9 * (p - torch.rand(3))).mean(),
        lambda p: F.mse_loss(p, torch.rand(ROWS, ROWS)),
        lambda p: (p * torch.rand(ROWS, ROWS)).mean(),
        lambda p: (p * X[:, :1].T).mean(),
        lambda p: ((X[:, None] * p[:, :, None]).sum(2) - Y[:, None]).square().mean(),
        lambda p: F.cross_entropy(p.expand(ROWS, 4), torch.zeros(ROWS).long(), torch.rand(4)),
        lambda p: (F.linear(p * Y, torch.rand(2, ROWS)) - 1).square().mean(),
        lambda p: p.detach().sum(),
        lambda p: (p.square() + Y.square() - 2 * p @ Y[None]).mean(),
    ],
    ids=range(22),
)  # fmt: skip
def test_what_is_meant(loss: Callable[[Tensor], Tensor]) -> None:
    assert loss_broadcast(loss(predicted(*COLUMN)).grad_fn) is None


def test_few_rows_may_be_the_quantiles_of_each() -> None:
    assert loss_broadcast((predicted(3, 1) - torch.rand(3)).abs().mean().grad_fn) is None


def test_a_parameter_is_no_prediction() -> None:
    weight = nn.Parameter(torch.rand(*COLUMN))
    assert loss_broadcast(((weight - Y) ** 2).mean().grad_fn) is None


def test_without_shapes_in_the_graph_nothing_is_said() -> None:
    class Node:
        next_functions = ()

        def name(self) -> str:
            return "MeanBackward0"

    node = Node()
    node.next_functions = ((Node(), 0),)
    assert loss_broadcast(node) is None


def test_a_long_loss_is_followed_for_a_while_only() -> None:
    loss = predicted(*COLUMN) * Y
    assert loss_broadcast(loss.abs().mean().grad_fn) is not None
    for _ in range(1_000):
        loss = loss.abs()
    assert loss_broadcast(loss.mean().grad_fn) is None


def test_it_is_sent_once(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(model(X), Y).backward()
            optimizer.step()
    sent = [(each.step, each.data) for each in ingest.events("loss_broadcast")]
    assert sent == [(0, {"op": "MseLoss", "prediction": [8, 1], "other": [8], "result": [8, 8]})]
