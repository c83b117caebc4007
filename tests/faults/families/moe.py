"""A mixture of experts: top-2 routing with a filter of -inf, a load-balancing loss, sparse embeddings beside."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import WORDS, cross_entropy, tokens

D, EXPERTS = 24, 4


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_in, self.w_out = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_out(F.relu(self.w_in(x)))


class SparseMoE(nn.Module):
    def __init__(self, jitter: float, place: str, plant: Plant) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(D, EXPERTS, bias=False), nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.jitter, self.place, self.plant = jitter, place, plant
        self.aux: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        logits = self.gate(flat)
        if self.training and self.jitter:
            logits = logits + torch.randn_like(logits) * self.jitter
        top, chosen = logits.topk(2, dim=-1)
        filtered = torch.full_like(logits, float("-inf")).scatter(1, chosen, top)
        weights = self.plant.inside(f"{self.place}.weights", F.softmax(filtered, dim=-1))
        weights = weights / weights.sum(-1, keepdim=True)
        self.aux = EXPERTS * (F.softmax(logits, -1).mean(0) * (weights > 0).float().mean(0)).sum()
        out = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            rows = (weights[:, n] > 0).nonzero().squeeze(1)
            if len(rows):
                made = self.plant.inside(f"{self.place}.experts.{n}", expert(flat[rows]))
                out = out.index_add(0, rows, made * weights[rows, n, None])
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, jitter: float, place: str, plant: Plant) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mix, self.moe = nn.Linear(D, D), SparseMoE(jitter, f"{place}.moe", plant)

    def forward(self, x: Tensor) -> Tensor:
        past = self.norm1(x).cumsum(1) / torch.arange(1, x.size(1) + 1)[:, None]
        x = x + self.mix(past)
        return x + self.moe(self.norm2(x))


class MoE(nn.Module):
    def __init__(self, sparse: bool, jitter: float, plant: Plant) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, D, sparse=sparse)
        self.layers = nn.ModuleList(Layer(jitter, f"layers.{n}", plant) for n in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, WORDS)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)), sum(layer.moe.aux for layer in self.layers)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, sparse: bool = False, jitter: float = 0.0,
    lr: float = 2e-3, clip: float = 1.0, left_out: str = "", **options: Any,
) -> None:  # fmt: skip
    """`left_out`: parameters whose name begins so are given to no optimizer."""
    plant = plant or Plant()
    model = MoE(sparse, jitter, plant)
    named = [(n, p) for n, p in model.named_parameters() if not (left_out and n.startswith(left_out))]
    dense = torch.optim.AdamW([p for n, p in named if not (sparse and n.startswith("embed"))], lr=lr)
    optimizers = [dense, torch.optim.SparseAdam(model.embed.parameters(), lr=lr)] if sparse else [dense]
    data = tokens(job.seed)
    with job.attach(model, optimizers, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(model)
            for group in dense.param_groups:
                group["lr"] = plant.rate(lr)
            x, y = plant.batch(data(step))
            logits, aux = model(x)
            loss = plant.loss(cross_entropy(logits, y) + 0.01 * aux)
            loss.backward()
            plant.gradients(model)
            if clip:
                nn.utils.clip_grad_norm_(
                    [p for p in model.parameters() if p.grad is not None and not p.grad.is_sparse], clip
                )
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            watch.log(loss=loss.item())


HEALTHY: dict[str, dict[str, Any]] = {
    "top 2 of 4": {},
    "sparse embeddings, router with noise": {"sparse": True, "jitter": 0.3, "clip": 0.0},
}
