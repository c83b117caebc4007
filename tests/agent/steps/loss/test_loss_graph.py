"""Which operation made a loss or a gradient NaN or Inf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.wire.events import LossGraph, read
from tests.agent.ingest_double import IngestDouble

NAN, INF = float("nan"), float("inf")


def graphs(ingest: IngestDouble, loss: Callable[[Tensor, int], Tensor], steps: int = 4) -> list[tuple[int, LossGraph]]:
    """What is sent of a model of two layers; `loss`: of the first one's output, at the step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(steps):
            loss(model(torch.ones(2, 3)), step).backward()
            optimizer.step()
            optimizer.zero_grad()
    known = [(each.step, read(LossGraph, each.data)) for each in ingest.events("loss_graph")]
    return [(step, graph) for step, graph in known if graph is not None]


def test_an_exponential_that_overflows_in_half_precision(ingest: IngestDouble) -> None:
    ((step, graph),) = graphs(ingest, lambda out, at: -torch.log(1 / (1 + (out + 20 * (at >= 2)).half().exp())).mean())
    assert (step, graph.bad[0].op, graph.bad[0].name) == (2, "Exp", "result")
    assert (graph.bad[0].value.dtype, graph.bad[0].value.inf_count) == ("float16", 8)


def test_what_came_from_outside_of_the_graph(ingest: IngestDouble) -> None:
    target = torch.zeros(2, 4)

    def loss(out: Tensor, step: int) -> Tensor:
        target[1, 2] = NAN if step == 1 else 0.0
        return F.mse_loss(out.exp(), target)

    ((step, graph),) = graphs(ingest, loss)
    assert (step, graph.bad[0].op, graph.bad[0].name, graph.bad[0].is_given) == (1, "MseLoss", "target", True)
    assert (graph.bad[0].value.nan_count, graph.bad[0].value.numel) == (1, 8)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_target_that_a_difference_alone_was_given(ingest: IngestDouble, bad: float) -> None:
    target = torch.zeros(2, 4)

    def loss(out: Tensor, step: int) -> Tensor:
        target[1, 2] = bad if step == 1 else 0.0
        return (target - out).square().mean() if step < 3 else (out - target).square().mean()

    ((step, graph),) = graphs(ingest, loss)
    assert (step, graph.bad[0].op, graph.bad[0].is_given) == (1, "Sub", True)
    assert graph.bad[0].value.nan_count + graph.bad[0].value.inf_count == 1


def test_a_difference_that_overflows_in_half_precision(ingest: IngestDouble) -> None:
    def loss(out: Tensor, step: int) -> Tensor:
        far = torch.full((2, 4), 65504.0, dtype=torch.float16)
        return ((out * 0 + 6e4).half() + far).square().float().mean() if step == 1 else out.mean()

    ((step, graph),) = graphs(ingest, loss)
    assert step == 1 and not any(each.is_given for each in graph.bad)


def test_a_difference_of_what_the_model_made_nan(ingest: IngestDouble) -> None:
    """0 / 0 in what the loss is computed of, which the difference passes on."""
    target = torch.zeros(2, 4)

    def loss(out: Tensor, step: int) -> Tensor:
        zero = out * (step != 1)
        return (zero / zero.detach().abs() - target).square().mean()

    ((step, graph),) = graphs(ingest, loss)
    assert (step, graph.bad[0].op, graph.bad[0].is_given) == (1, "Pow", False)
    assert graph.risky[0].op == "Div"


@pytest.mark.parametrize(
    "angle",
    [
        lambda out: torch.acos(1.5 + out.abs()),
        lambda out: (-1 - out.abs()) ** 0.5,
        lambda out: out[:0].mean() + out,
        lambda out: torch.acos(1.5 + out.abs())[:, None].flip(0).squeeze(1) * 2,
    ],
)
def test_a_difference_of_what_an_operation_made_nan_that_keeps_no_result(ingest: IngestDouble, angle: Any) -> None:
    """The target is finite."""
    target = torch.zeros(2, 4)
    ((step, graph),) = graphs(
        ingest, lambda out, at: ((angle(out) if at == 1 else out) - target).square().mean()
    )  # fmt: skip
    assert step == 1 and not any(each.is_given for each in graph.bad)


def test_a_mask_of_minus_inf_is_nothing_that_began_it(ingest: IngestDouble) -> None:
    """Of log_softmax it stays: the NaN comes with what it is multiplied by."""
    mask, weights = torch.tensor([0.0, 0.0, 0.0, -INF]), torch.ones(2, 4)

    def loss(out: Tensor, step: int) -> Tensor:
        weights[0, 0] = NAN if step == 1 else 1.0
        return (F.log_softmax(out + mask, -1)[:, :3] * weights[:, :3]).sum()

    ((step, graph),) = graphs(ingest, loss)
    assert (step, [(each.op, each.is_given) for each in graph.bad]) == (1, [("Mul", True)])


def test_a_log_of_zero(ingest: IngestDouble) -> None:
    ((step, graph),) = graphs(ingest, lambda out, at: -torch.log(out.square() * (at != 3)).mean())
    assert step == 3
    assert [(each.op, each.value.zero_count) for each in graph.risky] == [("Log", 8)]


def test_a_finite_loss_whose_gradient_is_not(ingest: IngestDouble) -> None:
    """0 / 0 in a row that an index leaves out; a division by a number is no suspect."""

    def loss(out: Tensor, step: int) -> Tensor:
        scaled = out.square() / 2 * torch.tensor([[1.0], [float(step != 2)]])
        return (scaled / scaled.sum(-1, keepdim=True))[:1].square().sum()

    ((step, graph),) = graphs(ingest, loss, steps=3)
    assert (step, graph.gradient_of) == (2, "1")
    assert "Div" in graph.ops and "Sum" in graph.ops and not graph.bad


def test_nothing_of_what_is_finite(ingest: IngestDouble) -> None:
    assert graphs(ingest, lambda out, at: out.square().sum().sqrt()) == []


def test_a_row_of_which_nothing_is_left(ingest: IngestDouble) -> None:
    """-Inf is what logsumexp gives of it, and no mask."""

    def loss(out: Tensor, step: int) -> Tensor:
        return torch.logsumexp(
            out.masked_fill(torch.ones(2, 4).bool() if step == 2 else torch.eye(2, 4).bool(), -INF), 1
        ).sum()

    ((step, graph),) = graphs(ingest, loss)
    assert (step, graph.bad[0].op, graph.bad[0].name, graph.bad[0].value.inf_count) == (2, "Logsumexp", "result", 2)


def test_a_division_by_zero_in_the_forward_is_behind_what_a_convolution_is_given(ingest: IngestDouble) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv1d(1, 2, 1), nn.Conv1d(2, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu()
            return self.last(h / h.sum(1, keepdim=True))

    torch.manual_seed(0)
    model = Net()
    nn.init.ones_(model.first.weight)
    nn.init.zeros_(model.first.bias)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(3):
            model(torch.tensor([[[1.0, 2.0, 0.0 if step == 2 else 3.0]]])).sum().backward()
            optimizer.step()
    (event,) = ingest.events("loss_graph")
    graph = read(LossGraph, event.data)
    assert graph is not None and event.step == 2
    assert not any(each.is_given for each in graph.bad)
    assert [(each.op, each.value.zero_count) for each in graph.risky] == [("Div", 1)]
