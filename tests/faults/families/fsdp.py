"""FSDP2: a decoder of two blocks, sharded over the ranks, each block a unit."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.faults.fault import Job, Plant
from tests.faults.models import LENGTH, WORDS, tokens

DIM, HEADS = 32, 2


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*shape, bias=False) for shape in ((DIM, 64), (64, DIM), (DIM, 64)))

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, layer_id: int, plant: Plant) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.feed_forward, self.attention_norm, self.ffn_norm = FeedForward(), RMSNorm(), RMSNorm()
        self.place, self.plant = f"layers.{layer_id}", plant

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.attention_norm(x)
        q, k, v = (w(h).view(b, t, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(h.transpose(1, 2).reshape(b, t, -1))
        return x + self.plant.inside(self.place, self.feed_forward(self.ffn_norm(x)))


class Decoder(nn.Module):
    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.tok_embeddings, self.positions = nn.Embedding(WORDS, DIM), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(TransformerBlock(n, plant) for n in range(2))
        self.norm, self.output = RMSNorm(), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tok_embeddings(ids) + self.positions(torch.arange(ids.size(1)))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-3, warmup: int = 30, clip: float = 1.0,
    **options: Any,
) -> None:  # fmt: skip
    plant = plant or Plant()
    mesh = init_device_mesh("cpu", (job.ranks,))
    model = Decoder(plant)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    data = tokens(job.seed * 100 + job.rank, 8)
    with job.attach(model, optimizer, **options) as watch:
        for step in plant.steps(steps):
            optimizer.param_groups[0]["lr"] = plant.rate(optimizer.param_groups[0]["lr"])
            watch.log(lr=optimizer.param_groups[0]["lr"])
            ids, labels = plant.batch(data(step))
            plant.weights(model)
            loss = plant.loss(F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()))
            loss.backward()
            plant.gradients(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            watch.log(loss=loss.item())


HEALTHY: dict[str, dict[str, Any]] = {"two ranks, warm-up": {}}
