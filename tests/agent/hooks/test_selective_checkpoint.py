"""Selective activation checkpointing: what is read of a region must not stand among what torch keeps of it."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import rangewatch
from tests.agent.ingest_double import IngestDouble


def kept(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    """All operations, as one that keeps what takes long keeps some."""
    return CheckpointPolicy.MUST_SAVE


checkpointed = partial(
    checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, kept)
)  # fmt: skip


class Scaled(nn.Module):
    """Calls operations that readings call too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x / torch.linalg.vector_norm(x, dim=-1, keepdim=True))
        low, high = torch.aminmax(x)
        left, right = x.view(-1).view(x.shape).split(4, -1)
        values = torch.sub(torch.cat([left, right], -1), low).double().float() / (high - low + x.abs().amax())
        return self.second(values).clone()  # type: ignore[no-any-return]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Scaled(), Scaled()])

    def forward(self, x: Tensor) -> Tensor:
        for each in self.blocks:
            x = checkpointed(each, x)
        return x


def losses(model: nn.Module, *, is_whole: bool, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    with rangewatch.attach(model, optimizer, **options) if options else contextlib.nullcontext():
        for _ in range(5):
            x = torch.randn(4, 8)
            loss = F.mse_loss(checkpointed(model, x) if is_whole else model(x), torch.ones(4, 8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


@pytest.mark.parametrize("options", [{}, {"backend": "device"}, {"level": "frames", "full_every": 2}])
@pytest.mark.parametrize("is_whole", [False, True])
def test_no_bit_differs(ingest: IngestDouble, is_whole: bool, options: dict[str, Any]) -> None:
    found = []
    for given in ({}, {"url": ingest.url, **options}):
        torch.manual_seed(0)
        found.append(losses(Scaled() if is_whole else Blocks(), is_whole=is_whole, **given))
    assert found[0] == found[1]
    assert set(ingest.series("weights_written").values()) == {0.0} and len(ingest.series("input_rms")) >= 2


class Attending(nn.Module):
    """Attends behind a mask, and calls what readings of masks and of logits call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.first(x).view(1, 2, 4, 4)
        x = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril())
        x = x * x.float().mean() + x.square().sum(-1, keepdim=True) * x.square().amax(dim=(0, 2), keepdim=True).sqrt()
        return self.second(x.reshape(4, 8))  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [{}, {"backend": "device"}])
def test_no_bit_differs_where_it_attends(ingest: IngestDouble, options: dict[str, Any]) -> None:
    found = []
    for given in ({}, {"url": ingest.url, **options}):
        torch.manual_seed(0)
        found.append(losses(Attending(), is_whole=True, **given))
    assert found[0] == found[1] and set(ingest.series("attention_share").values()) == {10 / 16}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_trace_of_what_attends_is_as_without(ingest: IngestDouble, recwarn: pytest.WarningsRecorder) -> None:
    model, x = Attending(), torch.randn(4, 8)
    with rangewatch.attach(model, torch.optim.SGD(model.parameters(), 0.1), url=ingest.url):
        traced = torch.jit.trace(model, x, check_trace=False)
    assert not [each for each in recwarn if issubclass(each.category, torch.jit.TracerWarning)]
    assert [each.kind() for each in traced.inlined_graph.nodes()] == [
        each.kind() for each in torch.jit.trace(model, x, check_trace=False).inlined_graph.nodes()
    ]
