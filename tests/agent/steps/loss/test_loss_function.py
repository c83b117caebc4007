"""Which cross entropy a loss is, by its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.steps.loss.loss_function import NEGATED, loss_function
from rangewatch.wire.events import LossFunction
from tests.agent.ingest_double import IngestDouble

NAN, KL = float("nan"), LossFunction("kl", given="Probabilities")
Y = torch.randint(0, 7, (4,))


def _spelled(frames: Tensor) -> Tensor:
    """The loss of a row of 4 frames that says one class."""
    rows = frames.unsqueeze(0).transpose(0, 1)
    return F.ctc_loss(rows, torch.tensor([[1]]), torch.tensor([4]), torch.tensor([1]))


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (lambda x: F.cross_entropy(x, Y), LossFunction("nll", 7)),
        (lambda x: 65536.0 * (F.cross_entropy(x, Y) / 4), LossFunction("nll", 7)),
        (lambda x: F.cross_entropy(x[:, :, None], Y[:, None]), LossFunction("nll", 7)),
        (lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(4, 7)), LossFunction("bce", 2)),
        (lambda x: F.cross_entropy(x, Y, reduction="sum"), None),
        (lambda x: F.cross_entropy(x, Y) + x.square().mean(), None),
        (lambda x: x.square().mean(), None),
        (lambda x: F.cross_entropy(x.softmax(-1), Y), LossFunction("nll", 7, "Softmax")),
        (lambda x: F.cross_entropy(x.softmax(-1).view(4, 7, 1).squeeze(-1), Y), LossFunction("nll", 7, "Softmax")),
        (lambda x: F.cross_entropy(x.log_softmax(-1), Y), LossFunction("nll", 7)),
        (lambda x: F.cross_entropy(x.relu(), Y), LossFunction("nll", 7, "Relu")),
        (lambda x: F.nll_loss(x.log_softmax(-1), Y), LossFunction("nll", 7)),
        (lambda x: F.nll_loss(x.softmax(-1), Y), LossFunction("nll", 7, "Probabilities")),
        (lambda x: F.nll_loss(x.softmax(-1).log(), Y), LossFunction("nll", 7)),
        (lambda x: F.nll_loss(x @ torch.ones(7, 7), Y), LossFunction("nll", 7, "Raw")),
        (
            lambda x: F.binary_cross_entropy_with_logits(x.sigmoid(), torch.ones(4, 7)),
            LossFunction("bce", 2, "Sigmoid"),
        ),
        (lambda x: -F.cross_entropy(x, Y), LossFunction("nll", 7, is_negated=True)),
        (lambda x: -0.5 * F.cross_entropy(x, Y), LossFunction("nll", 7, is_negated=True)),
        (lambda x: 0.5 * F.cross_entropy(x, Y), LossFunction("nll", 7)),
        (lambda x: x.square().mean() - F.cross_entropy(x, Y), None),
        (lambda x: F.mse_loss(x, torch.full((4, 7), 32.0)), LossFunction("mse", target_rms=pytest.approx(32.0))),
        (lambda x: F.mse_loss(x, torch.full((4, 7), NAN)), None),
        (lambda x: F.kl_div(x.softmax(-1), torch.full((4, 7), 1 / 7), reduction="batchmean"), KL),
        (lambda x: F.kl_div(x.softmax(-1), torch.full((4, 7), 1 / 7), reduction="sum") / 4, KL),
        (lambda x: F.kl_div(x.softmax(-1).view(2, 14), torch.full((2, 14), 1 / 7), reduction="batchmean"), KL),
        (lambda x: F.kl_div(x.log_softmax(-1), torch.full((4, 7), 1 / 7), reduction="batchmean"), None),
        (lambda x: (1.0 - x.softmax(-1)).mean(), None),
        (lambda x: _spelled(x.softmax(-1)), LossFunction("ctc", given="Probabilities")),
        (lambda x: _spelled(x @ torch.eye(7)), LossFunction("ctc", given="Raw")),
        (lambda x: _spelled(x.log_softmax(-1)), None),
        (lambda x: F.mse_loss(x, x.detach() + torch.ones(4, 7, requires_grad=True)), None),
        (lambda x: x.detach().sum(), None),
    ],
)
def test_the_loss_of_a_graph(loss: Callable[[Tensor], Tensor], wanted: LossFunction | None) -> None:
    assert loss_function(loss(torch.randn(4, 7, requires_grad=True)).grad_fn) == wanted


def negated(ingest: IngestDouble, losses: Callable[[Tensor, int], list[Tensor]]) -> list[tuple[int | None, object]]:
    """Step and sign of what is sent of a training with these losses of each step."""
    model = nn.Linear(3, 7)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(NEGATED + 2):
            for at in range(len(losses(model(torch.randn(4, 3)), step))):
                losses(model(torch.randn(4, 3)), step)[at].backward()
            optimizer.step()
    return [(each.step, each.data["is_negated"]) for each in ingest.events("loss_function")]


def test_a_loss_that_is_always_minus_a_cross_entropy(ingest: IngestDouble) -> None:
    assert negated(ingest, lambda x, step: [-F.cross_entropy(x, Y)]) == [(0, True)]


def test_an_attack_before_each_update_is_not_the_loss(ingest: IngestDouble) -> None:
    def attacked(x: Tensor, step: int) -> list[Tensor]:
        return [-F.cross_entropy(x, Y), -F.cross_entropy(x, Y), F.cross_entropy(x, Y)]

    assert negated(ingest, attacked) == [(0, False)]


def test_a_cross_entropy_times_an_advantage_has_the_sign_of_that(ingest: IngestDouble) -> None:
    assert negated(ingest, lambda x, step: [F.cross_entropy(x, Y) * (step - 6.5)]) == [(7, False)]


def test_what_is_minus_a_cross_entropy_at_first_alone(ingest: IngestDouble) -> None:
    def first(x: Tensor, step: int) -> list[Tensor]:
        return [-F.cross_entropy(x, Y) if step < 5 else x.square().mean()]

    assert negated(ingest, first) == []


def test_it_is_sent_once(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 7)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 3)), Y).backward()
            optimizer.step()
    assert [(each.step, each.data) for each in ingest.events("loss_function")] == [
        (0, {"op": "nll", "classes": 7, "given": "", "is_negated": False, "target_rms": 0.0})
    ]
    assert ingest.series("input_elements") == dict.fromkeys(range(5), 12.0)


def test_a_mask_is_no_larger_batch(ingest: IngestDouble) -> None:
    model = Masked()
    with rangewatch.attach(model, optimizer := torch.optim.SGD(model.parameters(), 1e-3), url=ingest.url):
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 3), torch.ones(4, 3, dtype=torch.bool) if step > 1 else None).mean().backward()
            optimizer.step()
    assert ingest.series("input_elements") == dict.fromkeys(range(4), 12.0)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 7)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.layer(x if mask is None else x * mask)
