"""What wrapping a function leaves behind in the process, and in the forward that calls it."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks import attention_logits
from tests.agent.ingest_double import IngestDouble


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.is_scratch_alive: list[bool] = []
        self.names: list[set[str]] = []

    def forward(self, x: Tensor) -> Tensor:
        before = locals()
        before.clear()
        scratch = torch.zeros(100)
        scratch_ref = weakref.ref(scratch)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        del scratch
        self.is_scratch_alive.append(scratch_ref() is not None)
        self.names.append(set(before))
        return out.transpose(1, 2).flatten(2)


def losses(model: nn.Module, handle: Any = None) -> list[float]:
    found = []
    for seed in range(2):
        loss = model(torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(seed))).square().mean()
        loss.backward()
        found.append(loss.item())
        if handle is not None:
            handle.step()
    return found


def test_no_local_of_the_users_forward_lives_longer(ingest: IngestDouble) -> None:
    model = nn.Sequential(Attention())
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        losses(model, handle)
    assert any("attention logits" in each.fqn for catalogue in ingest.catalogues.values() for each in catalogue)
    assert model[0].is_scratch_alive == [False, False]
    assert model[0].names == [set(), set()], "what locals() gave is the user's own"


@pytest.mark.allow_faults
def test_what_cannot_be_read_is_a_fault_and_no_exception(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: Any) -> Any:
        raise TypeError("another release")

    model = Attention()
    expected = losses(model)
    monkeypatch.setattr(attention_logits.FUNCTIONS[0], "_read", read)
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        model.eval()
        with torch.no_grad():
            losses_in_evaluation = model(torch.zeros(1, 3, 8))
        assert losses_in_evaluation.shape == (1, 3, 8)
        assert not handle.stats()["faults"], "in evaluation nothing is read"
        model.train()
        assert losses(model, handle) == expected
        assert handle.stats()["faults"]


def test_torchscript_knows_no_function_that_is_gone(ingest: IngestDouble) -> None:
    table = torch.jit._builtins._get_builtin_table()
    counts = []
    for _ in range(10):
        with rangewatch.attach(nn.Linear(2, 2), url=ingest.url, quiet=True):
            wrapper = F.scaled_dot_product_attention
            assert table[id(wrapper)] == "aten::scaled_dot_product_attention"
        counts.append(len(table))
    assert set(counts) == {counts[0]}
    gone = weakref.ref(wrapper)
    del wrapper
    assert gone() is not None, "its id is in torch's table"
