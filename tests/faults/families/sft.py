"""Supervised fine-tuning as TRL does it: prompts without loss, left padding that changes, gradient accumulation."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.faults.fault import Job, Plant
from tests.faults.models import WORDS, tokens

DIM, VOCAB, PAD, IGNORE = 32, WORDS + 1, WORDS, -100


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, 2, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        weights = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(DIM // 2) + mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj(torch.matmul(weights, v).transpose(1, 2).reshape(b, t, -1))


class DecoderLayer(nn.Module):
    def __init__(self, plant: Plant, place: str) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.self_attn = Attention()
        self.gate_proj, self.up_proj = (nn.Linear(DIM, 64, bias=False) for _ in range(2))
        self.down_proj, self.plant, self.place = nn.Linear(64, DIM, bias=False), plant, place

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask)
        h = self.post_attention_layernorm(x)
        return x + self.plant.inside(self.place, self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h)))


class CausalLM(nn.Module):
    def __init__(self, plant: Plant | None = None, filled: str = "-inf") -> None:
        super().__init__()
        self.embed_tokens, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(32, DIM)
        self.layers = nn.ModuleList(DecoderLayer(plant or Plant(), f"layers.{n}") for n in range(2))
        self.norm, self.lm_head, self.filled = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False), filled

    def causal_mask(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        t = attention_mask.size(1)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)[None] | (attention_mask[:, None, :] == 0)
        if self.filled == "-inf":
            hidden &= ~torch.eye(t, dtype=torch.bool)  # padding looks at itself: its softmax is over something
            return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, float("-inf"))[:, None]
        if self.filled == "-inf whole rows":
            return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, float("-inf"))[:, None]
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)[:, None]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids) + self.positions(attention_mask.cumsum(1).clamp(min=1) - 1)
        mask = self.causal_mask(attention_mask, x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.norm(x))


def collate(ids: Tensor, seed: int, step: int) -> dict[str, Tensor]:
    """Rows of other lengths, padded on the left; the first third of each is its prompt."""
    chance = torch.Generator().manual_seed(seed * 7919 + step)
    lengths = torch.randint(5, ids.size(1) + 1, (len(ids), 1), generator=chance)
    places = torch.arange(ids.size(1))[None]
    start = ids.size(1) - lengths
    padded = places < start
    labels = ids.masked_fill(places < start + lengths // 3, IGNORE)
    return {"input_ids": ids.masked_fill(padded, PAD), "attention_mask": (~padded).long(), "labels": labels}


def sft_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, filled: str = "-inf", lr: float = 2e-3,
    dtype: torch.dtype | None = None, accumulate: int = 1, clip: float = 1.0, neftune: float = 0.0, warmup: int = 20,
    pure: torch.dtype | None = None, make: Any = None, optimizer: Any = None, **options: Any,
) -> None:  # fmt: skip
    """`pure`: the dtype of model and moments. `neftune`: noise on the embeddings. `optimizer(parameters, lr)`."""
    plant = plant or Plant()
    model = make(plant) if make else CausalLM(plant, filled)
    model = model.to(pure) if pure else model
    optim = (optimizer or torch.optim.AdamW)(model.parameters(), lr=lr)
    if neftune:
        model.embed_tokens.register_forward_hook(
            lambda module, args, out: out + neftune / math.sqrt(out[0].numel()) * torch.empty_like(out).uniform_(-1, 1)
        )
    data = tokens(job.seed, 6)
    with job.attach(model, optim, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(model)
            for group in optim.param_groups:
                group["lr"] = plant.rate(lr * min(1.0, (step + 1) / warmup))
            total = 0.0
            for micro in range(accumulate):
                ids, last = data(step)
                batch = plant.batch(collate(torch.cat([ids, last[:, -1:]], 1), job.seed, step * accumulate + micro))
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    logits = model(batch["input_ids"], batch["attention_mask"])
                loss = plant.loss(sft_loss(logits, batch["labels"]) / accumulate)
                loss.backward()
                total += loss.item()
            plant.gradients(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optim.step()
            optim.zero_grad()
            watch.log(loss=total, learning_rate=optim.param_groups[0]["lr"])


HEALTHY: dict[str, dict[str, Any]] = {
    "padding that changes, -inf": {},
    "finfo.min, bf16, accumulated": {"filled": "finfo.min", "dtype": torch.bfloat16, "accumulate": 2},
    "noise on the embeddings": {"neftune": 5.0},
}
