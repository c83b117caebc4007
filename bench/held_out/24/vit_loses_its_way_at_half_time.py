"""A short training of a small vision transformer (patches, a class token, pre-norm) on bars of eight slants; 160 steps. FAULT at step 80: the second half of the plan
was written for a run with 64 times the batch, and the rate goes from 1e-3 to 0.3; the net diverges.
Without Rangewatch: loss 2.06 to 0.14 at step 80, 9.1 at step 81, 21.8 at step 84, 2.3 (chance) at the end.
Cause: learning_rate. Step: 80. Right: lower the learning rate / clip / warm-up. Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate"], "step": [79, 90], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|clip|warm", "wrong": ["GradScaler", "attention mask"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2411); torch.set_num_threads(1)


class Vit(nn.Module):
    def __init__(self, w=48):
        super().__init__()
        self.patch = nn.Linear(16, w)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, w)), nn.Parameter(0.02 * torch.randn(1, 17, w))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(w, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, 8)

    def forward(self, x):
        p = F.unfold(x, 4, stride=4).transpose(1, 2)
        h = torch.cat((self.token.expand(len(x), -1, -1), self.patch(p)), 1) + self.place
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h[:, 0]))


axis = torch.linspace(-1, 1, 16)


def bars(n):
    k = torch.randint(0, 8, (n,))
    angle = (k * math.pi / 8)[:, None, None]
    off = axis[None, :, None] * torch.cos(angle) + axis[None, None] * torch.sin(angle) - 0.6 * (torch.rand(n, 1, 1) - 0.5)
    return (off.abs() < 0.15).float()[:, None] + 0.2 * torch.randn(n, 1, 16, 16), k


model = Vit()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    if step == 80:
        optimizer.param_groups[0]["lr"] = 0.3
    x, k = bars(32)
    loss = F.cross_entropy(model(x), k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 78 < step < 86 or step == 159:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
