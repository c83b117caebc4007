"""Whether a loss was multiplied by the scaler's scale, by its graph alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.steps.loss.unscaled_losses import _look, _Seen
from rangewatch.wire.events import UnscaledLoss, read
from tests.agent.ingest_double import IngestDouble

SCALE = torch.tensor(1024.0)


class Named(Tensor):
    """As a DTensor is one."""


class Own(torch.autograd.Function):
    """A fused loss, which may scale as well as not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.sum() * 1024

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.expand(4) * 1024


LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], _Seen]] = {
    "by the tensor": (lambda out: F.mse_loss(out, torch.zeros(4)) * SCALE, _Seen.SCALED),
    "from the left": (lambda out: SCALE * out.mean(), _Seen.SCALED),
    "by a number": (lambda out: out.mean() * 1024.0, _Seen.SCALED),
    "then divided": (lambda out: out.mean() * SCALE / 4, _Seen.SCALED),
    "a sum": (lambda out: (out.mean() + 0.1 * out.square().sum()) * SCALE, _Seen.SCALED),
    "each part": (lambda out: out.mean() * SCALE + out.square().sum() * SCALE, _Seen.SCALED),
    "not": (lambda out: F.mse_loss(out, torch.zeros(4)), _Seen.UNSCALED),
    "by something else": (lambda out: 0.5 * out.square().mean(), _Seen.UNSCALED),
    "by a weight with a gradient": (lambda out: out.mean() * out[0], _Seen.UNSCALED),
    "a part": (lambda out: out.mean() * SCALE + 0.1 * out.square().sum(), _Seen.PARTLY),
    "several in a stack": (lambda out: torch.stack([out.mean() * SCALE, out.amax()]).sum(), _Seen.PARTLY),
    "by a subclass": (lambda out: out.mean() * torch.tensor(3.0).as_subclass(Named), _Seen.UNKNOWN),
    "by a function of one's own": (lambda out: Own.apply(out), _Seen.UNKNOWN),
    "not, and masked": (lambda out: (out * torch.ones(4)).sum() / 4, _Seen.UNSCALED),
    "by one number of several": (lambda out: (out.square() * (torch.ones(4) * SCALE)).sum(), _Seen.UNKNOWN),
    "by the scale of the step before": (lambda out: out.mean() * 512.0, _Seen.UNKNOWN),
    "then multiplied by what has a gradient": (lambda out: out.mean() * SCALE * out[0], _Seen.SCALED),
    "then divided by what has a gradient": (lambda out: out.mean() * SCALE / out[0], _Seen.SCALED),
    "then without NaN": (lambda out: torch.nan_to_num(out.mean() * SCALE), _Seen.UNKNOWN),
    "then joined": (lambda out: torch.cat([(out.mean() * SCALE)[None], out]).sum(), _Seen.UNKNOWN),
    "then chosen from": (lambda out: (out.square() * SCALE)[torch.arange(2)].mean(), _Seen.UNKNOWN),
    "a parameter": (lambda out: out.new_ones((), requires_grad=True) * 1.0, _Seen.UNKNOWN),
}


@pytest.mark.parametrize("name", LOSSES)
def test_by_its_graph(name: str) -> None:
    loss_of, expected = LOSSES[name]
    loss = loss_of(nn.Linear(3, 4)(torch.ones(3)))
    assert _look(loss.grad_fn, SCALE) is expected


def test_what_is_packed_away_is_not_computed_again() -> None:
    calls, weight = [], torch.tensor(0.5)

    def loss_of(out: Tensor) -> Tensor:
        calls.append(out)
        return out.square().mean() * weight

    loss = checkpoint(loss_of, nn.Linear(3, 4)(torch.ones(3)), use_reentrant=False)
    assert _look(loss.grad_fn, SCALE) is _Seen.UNKNOWN and len(calls) == 1


@pytest.mark.parametrize("factor", ["not", "scaled", "given", "hooked"])
def test_what_is_sent(ingest: IngestDouble, factor: str) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, run="unscaled"):
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).mean()).backward()
            other = model(torch.ones(2, 3)).square().mean()
            if factor == "hooked":
                other.register_hook(lambda gradient: gradient * 64.0)
            if factor == "given":
                other.backward(torch.tensor(64.0))
            else:
                (scaler.scale(other) if factor == "scaled" else other).backward()
            scaler.step(optimizer)
            scaler.update()
    sent = [UnscaledLoss(4, 0, True)] if factor == "not" else []
    assert [read(UnscaledLoss, each.data) for each in ingest.events("unscaled_loss")] == sent
