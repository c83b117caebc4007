"""A pocket GPT on two gloo ranks with DDP and microbatches, in the way of nanoGPT. FAULT at step 80: the batch ramps from 2 to 4 microbatches, but the
flag that lets DDP reduce still stands at the second microbatch: the last two add the gradients of each rank alone and the replicas part.
Without Rangewatch: loss 3.0 to 1.6 at step 79, 0.97 at the end on both; the sums of |w| are equal to step 79 (3507.616), 3511.32 and
3511.55 at 80, 3574.7 and 3578.8 at step 100, 3694.0 and 3695.0 at the end.
Cause: replicas or communication. Step: 80 to the end. Right: sync / no_sync / replicas. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [79, 110], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)sync|all_?reduce|replica|DDP|DistributedDataParallel|broadcast|rank", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2901); torch.set_num_threads(1)
V, T, D = 18, 20, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.Sequential(Block(), Block())
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        return self.lm_head(self.ln_f(self.h(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))))


raw = GPT()
model = DDP(raw)
optimizer = torch.optim.AdamW(raw.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
handle = rangewatch.attach(raw, optimizer)
g = torch.Generator().manual_seed(500 + rank)
table = torch.randint(0, V, (V, V), generator=torch.Generator().manual_seed(7))


def get_batch():
    seq = [torch.randint(0, V, (8,), generator=g), torch.randint(0, V, (8,), generator=g)]
    for _ in range(T - 1):
        noise = torch.rand(8, generator=g) < 0.05
        seq.append(torch.where(noise, torch.randint(0, V, (8,), generator=g), table[seq[-2], seq[-1]]))
    ids = torch.stack(seq, 1)
    return ids[:, :-1], ids[:, 1:]


for step in range(160):
    accum = 2 if step < 80 else 4
    total = 0.0
    for micro in range(accum):
        model.require_backward_grad_sync = (micro == 1)
        x, y = get_batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accum
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 20 == 0 or step in (79, 81, 159):
        print(rank, step, total, "sum of |w|", sum(p.abs().sum() for p in raw.parameters()).item(), flush=True)
    handle.log(loss=total)
handle.detach()
dist.destroy_process_group()
