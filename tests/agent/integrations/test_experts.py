"""Models of Transformers with experts: tokens as their own routers gave them, and not a bit of the losses changed."""

from __future__ import annotations

import pytest
import torch

import rangewatch
from rangewatch.statistics import experts
from tests.agent.hooks.test_routers import counted
from tests.agent.ingest_double import IngestDouble
from tests.e2e.expert_ranks import SIZES, made


def train(name: str, url: str | None, steps: int = 3) -> tuple[list[float], dict[str, list[torch.Tensor]]]:
    """Losses, and by router what it chose at each step, as a hook of the test saw it."""
    torch.manual_seed(0)
    model = made(name)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    chosen: dict[str, list[torch.Tensor]] = {}
    for fqn, module in model.named_modules():
        if type(module).__name__.endswith("TopKRouter"):
            chosen[fqn] = []
            module.register_forward_hook(lambda _, args, out, fqn=fqn: chosen[fqn].append(out[-1].clone()))
    handle = rangewatch.attach(model, optimizer, url=url, quiet=True) if url else None
    losses = []
    for _ in range(steps):
        rows = torch.randint(0, SIZES["vocab_size"], (4, 16))
        loss = model(input_ids=rows, labels=rows, output_router_logits=True).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if handle:
        handle.detach()
    return losses, chosen


@pytest.mark.parametrize(
    "name",
    ["Mixtral", pytest.param("Qwen3-MoE", marks=pytest.mark.slow), pytest.param("OLMoE", marks=pytest.mark.slow)],
)
def test_tokens_are_those_that_its_routers_chose(name: str, ingest: IngestDouble) -> None:
    losses, chosen = train(name, ingest.url)
    assert len(chosen) == SIZES["num_hidden_layers"]
    for fqn, places in chosen.items():
        found = counted(ingest, fqn)
        for step, each in enumerate(places):
            tokens = [sum(1 for place in each.flatten().tolist() if place == expert) for expert in range(8)]
            assert [found[step].get(experts.column(at), 0) for at in range(8)] == tokens, (fqn, step)
            assert found[step][experts.ROUTED] == len(each)
    assert not ingest.events("fault")
    assert train(name, None)[0] == losses
