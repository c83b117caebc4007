"""A GPT of the small kind: weight groups, warm-up and cosine, micro steps, an evaluation now and then, DDP if asked."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.fault import Job, Plant
from tests.faults.models import LENGTH, WORDS, tokens

N_EMBD, N_HEAD = 32, 4
NINF = float("-inf")


class CausalBias(nn.Module):
    """The mask as a module's output: 0 where a position may look, -inf where not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.full((LENGTH, LENGTH), NINF).triu(1), persistent=False)

    def forward(self, t: int) -> Tensor:
        return self.bias[:t, :t]


class MaskedScores(nn.Module):
    """The scores, with the mask added to them."""

    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)) + mask


class CausalSelfAttention(nn.Module):
    def __init__(self, mask: str, dropout: float, place: str, plant: Plant) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(N_EMBD, 3 * N_EMBD), nn.Linear(N_EMBD, N_EMBD)
        self.mask, self.dropout, self.place, self.plant = mask, dropout, place, plant
        self.register_buffer("tril", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, N_HEAD + 1).view(1, N_HEAD, 1, 1), persistent=False)
        self.causal_bias = CausalBias() if mask == "module" else None
        self.scores = MaskedScores() if mask == "scores" else None

    def masked(self, q: Tensor, k: Tensor) -> Tensor:
        t = q.size(2)
        inf = torch.full((t, t), NINF, device=q.device).triu(1)
        if self.scores is not None:
            return self.scores(q, k, inf)
        att = self.plant.inside(f"{self.place}.scores", (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1)))
        if self.causal_bias is not None:
            return att + self.causal_bias(t)
        if self.mask == "triu":
            return att + inf
        if self.mask == "alibi":
            return att - self.slopes * (torch.arange(t)[:, None] - torch.arange(t)).abs() + inf
        if self.mask == "finfo":
            return att + torch.full((t, t), torch.finfo(att.dtype).min, dtype=att.dtype).triu(1)
        return att.masked_fill(self.tril[:, :, :t, :t] == 0, NINF)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, N_HEAD, c // N_HEAD).transpose(1, 2) for y in self.c_attn(x).split(N_EMBD, dim=2))
        if self.mask == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = F.dropout(F.softmax(self.masked(q, k), dim=-1), self.dropout, self.training)
            y = att @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class MLP(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.dropout = nn.Linear(N_EMBD, 4 * N_EMBD), nn.Linear(4 * N_EMBD, N_EMBD), dropout

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, mask: str, dropout: float, place: str, plant: Plant) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(N_EMBD), nn.LayerNorm(N_EMBD)
        self.attn, self.mlp = CausalSelfAttention(mask, dropout, f"{place}.attn", plant), MLP(dropout)
        self.place, self.plant = place, plant

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.plant.inside(f"{self.place}.mlp", self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    def __init__(self, mask: str = "fill", dropout: float = 0.0, plant: Plant | None = None) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, N_EMBD), nn.Embedding(LENGTH, N_EMBD)
        self.h = nn.ModuleList(Block(mask, dropout, f"h.{n}", plant or Plant()) for n in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(N_EMBD), nn.Linear(N_EMBD, WORDS, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx: Tensor, new: int, top_k: int = 3) -> Tensor:
        for _ in range(new):
            logits, _ = self(idx[:, -LENGTH:])
            logits = logits[:, -1, :]
            v, _ = torch.topk(logits, top_k)
            logits[logits < v[:, [-1]]] = NINF
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits.float(), dim=-1), 1)), dim=1)
        return idx


def configure_optimizer(model: nn.Module, lr: float, betas: tuple[float, float]) -> torch.optim.Optimizer:
    params = [p for p in model.parameters() if p.requires_grad]
    decay, rest = [p for p in params if p.dim() >= 2], [p for p in params if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas)


def get_lr(it: int, lr: float, warmup: int, steps: int) -> float:
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    ratio = (it - warmup) / max(1, steps - warmup)
    return 0.1 * lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * 0.9 * lr


def clip_by_hand(model: nn.Module, most: float) -> None:
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters() if p.grad is not None))
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(most / norm if norm < most or norm > most else 1.0)


def no_context() -> Any:
    return contextlib.nullcontext()


EVAL = {"eval": torch.no_grad, "inference_mode": torch.inference_mode, "no_grad in train mode": torch.no_grad}


def estimate_loss(model: GPT, plant: Plant, batches: Any, how: str) -> float:
    if how != "no_grad in train mode":
        model.eval()
    with EVAL[how]():
        losses = [model(*plant.held_out(batches(n)))[1].item() for n in range(3)]
        model.generate(torch.zeros(1, 1, dtype=torch.long), 6)
    model.train()
    return sum(losses) / len(losses)


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, mask: str = "fill", dropout: float = 0.0,
    dtype: torch.dtype | None = None, scaler: Any = None, lr: float = 3e-3, warmup: int = 20,
    decay: bool = True, grad_clip: float = 1.0, by_hand: bool = False, micro_steps: int = 1, eval_every: int = 0,
    evaluated: str = "eval", hook: Any = None, **options: Any,
) -> None:  # fmt: skip
    """`scaler()`: makes one, for float16. `hook`: DDP's communication hook."""
    plant = plant or Plant()
    model = GPT(mask, dropout, plant)
    optimizer = configure_optimizer(model, lr, (0.9, 0.95))
    raw = model
    if job.ranks > 1:
        model = DDP(raw, bucket_cap_mb=0.01)
        if hook is not None:
            model.register_comm_hook(None, hook)
    scaler = scaler() if scaler else torch.amp.GradScaler("cpu", enabled=False)
    get_batch, held_out = tokens(job.seed * 100 + job.rank, 8), tokens(7_000 + job.seed, 8)
    ctx = torch.autocast("cpu", dtype) if dtype else no_context()
    with job.attach(model, optimizer, scaler if scaler.is_enabled() else None, **options) as watch:
        for it in plant.steps(steps):
            rate = plant.rate(get_lr(it, lr, warmup, steps) if decay else lr)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if eval_every and it % eval_every == 0:
                watch.log(val_loss=estimate_loss(raw, plant, held_out, evaluated))
            plant.weights(raw)
            for _ in range(micro_steps):
                x, y = plant.batch(get_batch(it))
                with ctx:
                    _, loss = model(x, y)
                loss = plant.loss(loss / micro_steps)
                scaler.scale(loss).backward()
            plant.gradients(raw)
            if grad_clip:
                scaler.unscale_(optimizer)
                (clip_by_hand if by_hand else nn.utils.clip_grad_norm_)(
                    *((raw, grad_clip) if by_hand else (raw.parameters(), grad_clip))
                )
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            watch.log(loss=loss.item() * micro_steps, lr=rate)


HEALTHY: dict[str, dict[str, Any]] = {
    "mask as a module, evaluated": {"mask": "module", "eval_every": 50},
    "scores with the mask added, bf16": {"mask": "scores", "dtype": torch.bfloat16},
    "masked_fill, micro steps, dropout": {"micro_steps": 2, "dropout": 0.1},
    "ALiBi, inference_mode": {"mask": "alibi", "eval_every": 40, "evaluated": "inference_mode"},
    "triu, no clip": {"mask": "triu", "grad_clip": 0.0},
    "finfo.min, fp16 whose scale grows": {
        "mask": "finfo", "dtype": torch.float16,
        "scaler": lambda: torch.amp.GradScaler("cpu", 2.0**14, growth_interval=25),
    },
    "sdpa, clipped at each step": {
        "mask": "sdpa", "grad_clip": 0.05, "eval_every": 100, "evaluated": "no_grad in train mode",
    },
}  # fmt: skip
