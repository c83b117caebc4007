"""A nanoGPT-style character model under DistributedDataParallel, two gloo ranks. FAULT: the peak of the warmup-cosine schedule is 6e-1 where 6e-3 was meant
(a typing slip in the config); the warmup of 100 steps hides it at first, the rate is past what Adam bears from about step 5 to 20 on.
Without Rangewatch: loss 3.0 to 1.2 at step 5, 1.5 at step 10, 1.3 at step 20, then up to 2.1 (step 40), 2.5 (step 60), 1.9 (step 100); as the cosine brings the
rate down again it falls to 1.16 to 1.25 at the end, both ranks alike.
Cause: learning_rate (optimizer). Step: 0 to 100. Right: lower the learning rate / peak / warmup. Wrong: GradScaler, bad data, DDP."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 110], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)learning.?rate|\\blr\\b|warm-?up|schedule|step size", "wrong": ["GradScaler", "(?i)all_reduce is missing", "(?i)log of (0|zero)"]}
import math
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1337); torch.set_num_threads(1)
block_size, n_embd, n_head = 32, 48, 4
text = " ".join(f"{a} plus {b} makes {a + b};" for a in range(30) for b in range(20))
chars = sorted(set(text)); stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (u.view(B, T, n_head, -1).transpose(1, 2) for u in self.c_attn(self.ln_1(x)).split(n_embd, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, len(chars), bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight
        for b in self.h:
            x = b(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


learning_rate, min_lr, warmup_iters, max_iters = 6e-1, 6e-5, 100, 200


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    return min_lr + 0.5 * (1 + math.cos(math.pi * (it - warmup_iters) / (max_iters - warmup_iters))) * (learning_rate - min_lr)


model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
handle = rangewatch.attach(model, optimizer)
g = torch.Generator().manual_seed(100 + rank)
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    ix = torch.randint(len(data) - block_size - 1, (16,), generator=g)
    x = torch.stack([data[i:i + block_size] for i in ix]); y = torch.stack([data[i + 1:i + 1 + block_size] for i in ix])
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 20 == 0 or it in (5, 10, 199):
        print(rank, it, loss.item(), get_lr(it), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
