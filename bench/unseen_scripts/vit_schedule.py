"""ViT with layer scale, einsum attention, AdamW. FAULT at step 120: the linear scaling rule is applied a second time when the
warm-up ends (lr x 4096). Cause: learning_rate, step 120 (its result at 120..124), no particular place.
Right: lower the learning rate / the schedule at 120. Wrong: mask, batch, weight of a checkpoint, dtype."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 126], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "batch of (this )?step", "checkpoint", "float32", "bfloat16"], "right": "learning rate|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3); torch.set_num_threads(1)

class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h, self.qkv, self.proj = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).unbind(2)
        a = torch.einsum("bnhd,bmhd->bhnm", q, k) * (d // self.h) ** -0.5
        return self.proj(torch.einsum("bhnm,bmhd->bnhd", a.softmax(-1), v).reshape(b, n, d))

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.fc1, self.fc2 = Attention(d, 4), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma1, self.gamma2 = nn.Parameter(torch.full((d,), 0.1)), nn.Parameter(torch.full((d,), 0.1))
    def forward(self, x):
        x = x + self.gamma1 * self.attn(self.n1(x))
        return x + self.gamma2 * self.fc2(F.gelu(self.fc1(self.n2(x))))

class ViT(nn.Module):
    def __init__(self, d=48, depth=3, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.randn(1, 17, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)
    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])

model, base, warm = ViT(), 5e-4, 120
optimizer = torch.optim.AdamW(model.parameters(), lr=base, weight_decay=0.05)
def scale(it):
    return (it + 1) / warm if it < warm else 4096 * 0.5   # "lr * total_batch / 256", which base has already
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
rangewatch.attach(model, optimizer)
protos = torch.randn(10, 3, 16, 16)
for it in range(250):
    y = torch.randint(0, 10, (32,))
    x = protos[y] + 0.8 * torch.randn(32, 3, 16, 16)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True); loss.backward(); optimizer.step(); schedule.step()
