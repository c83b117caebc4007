"""Sentiment fine-tuning of a small transformer encoder with LoRA adapters, AdamW.
FAULT at step 0: the optimizer is made from model.parameters() before the adapters are injected and the base is frozen; it holds frozen tensors only, no adapter is ever updated.
Without Rangewatch: loss 0.66 to 0.79 with no trend over 200 steps, the norm of lora_B is 0.0000 to the end.
Cause: optimizer (does not hold the trainable parameters) / no_gradient. Step: from 0. Right: build the optimizer after the injection, from the parameters that require grad.
Wrong: raise the learning rate, GradScaler, clip the gradients."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)optimi[sz]er", "wrong": [r"(?i)(raise|increase|lower) the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(404); torch.set_num_threads(1)
VOCAB, LENGTH, HIDDEN = 60, 14, 48
GOOD, BAD = 20, 40          # tokens 0-19 neutral, 20-39 praise, 40-59 blame


def reviews(n):
    y = torch.randint(0, 2, (n,))
    tokens = torch.randint(0, 20, (n, LENGTH))
    opinion = torch.where(y == 1, GOOD, BAD)[:, None] + torch.randint(0, 20, (n, LENGTH))
    return torch.where(torch.rand(n, LENGTH) < 0.25, opinion, tokens), y


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base, self.scaling = base, alpha / r
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.ln1, self.ln2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 96), nn.GELU(), nn.Linear(96, HIDDEN))

    def forward(self, x):
        h = self.ln1(x)
        x = x + self.o_proj(F.scaled_dot_product_attention(self.q_proj(h), self.k_proj(h), self.v_proj(h)))
        return x + self.mlp(self.ln2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.score = nn.Linear(HIDDEN, 2)

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.score(x.mean(1))


def inject_lora(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.h:
        block.q_proj, block.v_proj = LoRALinear(block.q_proj), LoRALinear(block.v_proj)


model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
inject_lora(model)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    ids, y = reviews(32)
    loss = F.cross_entropy(model(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(step, f"loss {loss.item():.4f}, norm of lora_B {model.h[0].q_proj.lora_B.norm().item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
