"""T5-like encoder in fp16 autocast with a GradScaler, from a checkpoint with a few large channels, as T5 has. FAULT from step 110: a
rare token turns up that excites them, and wo of the second feed-forward goes past 65504: Inf in fp16, NaN from the RMSNorm behind
it; those steps are skipped and their loss is NaN. Report: huggingface/transformers#5651, #9295, #4586 (Inf in wo, NaN in T5LayerNorm).
Cause: forward_arithmetic or weight, step 110, place blocks.1.ff(.wo). Right: bf16 / fp32 there / clamp. Wrong: learning rate, mask."""
EXPECT = {"cause": ["forward_arithmetic", "weight"], "step": [110, 110], "place": r"blocks\.1\.ff(\.wo)?.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask"], "right": "bfloat16|bf16|float32|fp32|clamp|range|smaller|scale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(5); torch.set_num_threads(1)
D, V = 48, 60

class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wo = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
    def forward(self, x):
        return self.wo(F.relu(self.wi(x)))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attn, self.ff = RMSNorm(), RMSNorm(), nn.MultiheadAttention(D, 4, batch_first=True, bias=False), FeedForward()
    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.norm2(x))

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(0.1 * torch.randn(12, D))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = RMSNorm(), nn.Linear(D, V)
    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

net = Encoder()
with torch.no_grad():  # the checkpoint: channel 0 is used by token 59 alone
    net.tok.weight[:, 0] = 0
    net.tok.weight[59] = 0
    net.tok.weight[59, 0] = 40
    net.blocks[1].ff.wi.weight[:6, 0] = 60.0
    net.blocks[1].ff.wi.weight[:6, 1:] = 0
    net.blocks[1].ff.wo.weight[0, :6] = 60.0
opt = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
watch = rangewatch.attach(net, opt, scaler=scaler)
nxt = torch.randperm(59)
for step in range(200):
    ids = torch.randint(0, 59, (16, 12))
    if step >= 110 and step % 5 == 0:
        ids[3, 7] = 59
    labels = nxt[ids.clamp(max=58)]
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(ids)
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update()
    watch.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())
