"""A loss that is computed otherwise than before, by its graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.steps.loss.loss_changes import MOST_EVENTS
from tests.agent.ingest_double import IngestDouble

Y, CLASSES = torch.randn(6, 1), torch.randint(0, 4, (6,))


def changes(
    ingest: IngestDouble, losses: Callable[[Tensor, int], list[Tensor]], steps: int = 40
) -> list[tuple[int | None, object, object]]:
    """Step, and what was before and after, of a training with these losses of each step."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    with rangewatch.attach(model, optimizer := torch.optim.SGD(model.parameters(), 1e-3), url=ingest.url):
        for step in range(steps):
            optimizer.zero_grad()
            for at in range(len(losses(model(torch.randn(6, 3)), step))):
                losses(model(torch.randn(6, 3)), step)[at].backward()
            optimizer.step()
    return [(each.step, each.data["before"][0], each.data["after"][0]) for each in ingest.events("loss_changed")]


def squares(x: Tensor, y: Tensor = Y) -> Tensor:
    return (x - y).square()


def of_maps(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(x[:, :, None], y[:, None], reduction=reduction)


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (lambda x: squares(x).mean(), lambda x: squares(x).sum(), ("Mean", "Sum")),
        (lambda x: squares(x).mean(), lambda x: squares(x[:, 0]).mean(), ("Mean", "Mean")),
        (lambda x: squares(x).mean(), lambda x: squares(x, Y[:, 0]).mean(), ("Mean", "Mean")),
        (lambda x: squares(x).mean(), lambda x: squares(x).mean() + x.abs().mean(), ("Mean", "Add")),
        (F.mse_loss, partial(F.mse_loss, reduction="sum"), ("MseLoss mean", "MseLoss sum")),
        (F.cross_entropy, partial(F.cross_entropy, reduction="sum"), ("NllLoss mean", "NllLoss sum")),
        (of_maps, partial(of_maps, reduction="sum"), ("NllLoss2D mean", "NllLoss2D sum")),
    ],
    ids=[
        "mean to sum", "a dimension less", "targets of one less", "a term more", "of squares", "of a cross entropy",
        "of that of maps",
    ],
)  # fmt: skip
def test_from_a_step_on(ingest: IngestDouble, before: Any, after: Any, names: tuple[str, str]) -> None:
    def loss(x: Tensor, step: int) -> list[Tensor]:
        chosen = before if step < 20 else after
        if names[0].startswith("Nll"):
            return [chosen(x, CLASSES)]
        return [chosen(x[:, :1], Y) if names[0].startswith("Mse") else chosen(x[:, :1])]

    assert changes(ingest, loss) == [(20, *names)]


def test_losses_that_take_turns_from_the_start(ingest: IngestDouble) -> None:
    assert changes(ingest, lambda x, step: [x.mean(), x.square().sum()] if step % 2 else [x.exp().mean()]) == []


def test_what_comes_now_and_then_is_no_change(ingest: IngestDouble) -> None:
    """As a penalty at each tenth step does, or the last batch of an epoch, which may be of one row."""
    assert changes(ingest, lambda x, step: [x.sum() if step % 10 == 9 else x.mean()]) == []
    rows = [torch.arange(1 if step >= 20 else 6) for step in range(40)]
    assert changes(ingest, lambda x, step: [F.mse_loss(x[rows[step]][:, :1], Y[rows[step]])]) == []


def test_the_same_again_is_no_news(ingest: IngestDouble) -> None:
    assert changes(ingest, lambda x, step: [x.sum() if step // 6 in (3, 5) else x.mean()]) == [(18, "Mean", "Sum")]


def test_a_loss_of_another_model_is_none_of_this_one(ingest: IngestDouble) -> None:
    probe = nn.Linear(4, 1)
    assert changes(ingest, lambda x, step: [x.mean()] + [probe(x.detach()).exp().sum()] * (step > 20)) == []


def test_of_one_that_is_ever_another_not_all_is_said(ingest: IngestDouble) -> None:
    names = ("exp", "sin", "cos", "tanh", "sigmoid", "abs", "square", "sinh", "cosh", "atan", "erf", "expm1", "softmax")
    made = [partial(Tensor.softmax, dim=-1) if name == "softmax" else getattr(Tensor, name) for name in names]
    assert len(changes(ingest, lambda x, step: [made[step // 16](x).mean()], 16 * len(made))) == MOST_EVENTS


class Named(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.name = "mine"  # hides the node's own method
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_a_function_of_the_user_s_own_that_has_a_name(ingest: IngestDouble) -> None:
    def loss(x: Tensor, step: int) -> list[Tensor]:
        return [Named.apply(x.mean() if step < 20 else x.sum())]  # type: ignore[no-untyped-call]

    assert changes(ingest, loss) == [(20, "Named", "Named")]
    assert list(ingest.series("loss")) == list(range(40))


@pytest.mark.parametrize("is_column", [True, False])
def test_a_broadcast_that_begins_later(ingest: IngestDouble, is_column: bool) -> None:
    def loss(x: Tensor, step: int) -> list[Tensor]:
        return [F.mse_loss(x[:, :1], Y if step < 20 or is_column else Y[:, 0])]

    with nullcontext() if is_column else pytest.warns(UserWarning, match="target size"):
        changes(ingest, loss)
    assert [each.step for each in ingest.events("loss_broadcast")] == ([] if is_column else [20])
