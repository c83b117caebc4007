"""HEALTHY: shifted-window attention with -inf masks (built per batch, with padding that changes), sparsemax-like top-k filter of -inf, bf16
autocast; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class MaskBuilder(nn.Module):
    def forward(self, lengths, n, w):
        i = torch.arange(n)
        far = (i[:, None] - i[None]).abs() > w
        pad = i[None] >= lengths[:, None]
        keep_self = torch.eye(n, dtype=torch.bool)
        hide = (far[None] | pad[:, None, :]) & ~keep_self
        return torch.zeros(len(lengths), n, n).masked_fill(hide, float("-inf"))

class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.ff, self.n1, self.n2 = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)), nn.LayerNorm(d), nn.LayerNorm(d)
    def forward(self, x, mask):
        h = self.n1(x)
        s = self.q(h) @ self.k(h).mT / h.shape[-1] ** 0.5 + mask
        kth = s.topk(4, -1).values[..., -1:]
        s = torch.where(s < kth, float("-inf"), s)
        x = x + self.o(s.softmax(-1) @ self.v(h))
        return x + self.ff(self.n2(x))

class Tagger(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb, self.masks, self.layers, self.out = nn.Embedding(20, d), MaskBuilder(), nn.ModuleList(Layer(d) for _ in range(2)), nn.Linear(d, 20)
    def forward(self, ids, lengths):
        x = self.emb(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, self.masks(lengths, ids.shape[1], 2 + i))
        return self.out(x)

net = Tagger()
opt = torch.optim.AdamW(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for step in range(400):
    lengths = torch.randint(4, 15, (16,))
    n = int(lengths.max())
    ids = torch.randint(0, 20, (16, n))
    tags = (ids + ids.roll(1, 1)) % 20
    tags[torch.arange(n)[None] >= lengths[:, None]] = -100
    tags[:, 0] = -100
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(net(ids, lengths).float().mT, tags)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
