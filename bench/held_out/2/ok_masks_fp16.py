"""A long-document tagger in fp16 autocast with a GradScaler whose five attention layers use every kind of mask: a float mask of -inf (causal, a module returns
it), finfo.min for padding, a boolean for SDPA, ALiBi added to a window of -inf, and a boolean with rows in which no key is allowed (answered with
zeros). HEALTHY: -inf and -65504 are wanted, nothing of them reaches a loss or a gradient."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
T, D, H = 24, 48, 4

class CausalMask(nn.Module):
    def forward(self, scores):
        t = scores.shape[-1]
        return torch.full((t, t), float("-inf"), dtype=scores.dtype).triu(1)

class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.qkv, self.out = kind, nn.Linear(D, 3 * D), nn.Linear(D, D)
        if kind == "causal":
            self.mask = CausalMask()
    def forward(self, x, pad):                       # pad: (B, T), True where there is nothing
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.kind in ("sdpa", "no_key"):
            allowed = ~pad[:, None, None, :]
            if self.kind == "no_key":
                allowed = allowed & ~pad[:, None, :, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed.expand(-1, -1, T, -1))
        else:
            scores = q @ k.transpose(-1, -2) / (D // H) ** 0.5
            if self.kind == "causal":
                scores = scores + self.mask(scores)
            elif self.kind == "padding":
                scores = scores + pad[:, None, None, :].to(scores.dtype) * torch.finfo(scores.dtype).min
            else:
                near = (torch.arange(T)[:, None] - torch.arange(T)).abs()
                slope = 2.0 ** -torch.arange(1, H + 1).float()
                bias = (-slope[:, None, None] * near).masked_fill(near > 6, float("-inf"))
                scores = scores + bias.to(scores.dtype)
            y = scores.softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).flatten(2))

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(120, D)
        self.attention = nn.ModuleList([Attention(k) for k in ("padding", "window", "sdpa", "no_key", "causal")])
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(5)])
        self.tags = nn.Linear(D, 6)
    def forward(self, ids):
        pad = ids == 0
        x = self.tok(ids)
        for norm, attend in zip(self.norms, self.attention):
            x = x + attend(norm(x), pad)
        return self.tags(x)

tagger = Tagger()
opt = torch.optim.AdamW(tagger.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=100)
watch = rangewatch.attach(tagger, opt, scaler=scaler)
for step in range(110):
    ids = torch.randint(1, 120, (8, T))
    tags = (ids + ids.roll(1, 1)) % 2 * 3 + ids % 3
    length = torch.randint(8, T + 1, (8, 1))
    ids = ids * (torch.arange(T) < length)
    tags = torch.where(ids == 0, -100, tags)
    tags[:, 0] = -100
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(tagger(ids).flatten(0, 1).float(), tags.flatten(), ignore_index=-100)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
    scaler.step(opt); scaler.update()
    watch.log(loss=loss.item())
    if step % 20 == 0: print(step, loss.item(), scaler.get_scale())
