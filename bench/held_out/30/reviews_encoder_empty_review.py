"""A transformer encoder that rates reviews of up to 20 words, padded on the right. FAULT at step 78: a review of that batch was cut to nothing by the cleaning: its row of the padding mask
is True throughout, and softmax makes NaN of it.
Without Rangewatch: loss 0.12 to 0.008 at step 77, NaN from step 78 to the end.
Cause: mask or data. Step: 78. Right: mask / padding / empty. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["mask", "data"], "step": [77, 81], "place": None, "rank": None,
          "right": "(?i)mask|padd|empty|softmax", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3018); torch.set_num_threads(1)
worth = torch.randn(80)
JUNK = {78: 5}


class Rater(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(81, 32, padding_idx=80)
        self.look = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))
        self.think = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.rate = nn.Linear(32, 1)

    def forward(self, x):
        pad = x == 80
        h = self.words(x)
        for look, think in zip(self.look, self.think):
            h = h + look(h, h, h, key_padding_mask=pad)[0]
            h = h + think(h)
        return self.rate((h * ~pad[..., None]).sum(1) / (~pad).sum(1, keepdim=True).clamp(min=1))[:, 0]


def reviews(step, n=24):
    x = torch.randint(0, 80, (n, 20))
    length = torch.randint(3, 21, (n,))
    if step in JUNK:
        length[JUNK[step]] = 0
    pad = torch.arange(20) >= length[:, None]
    y = (worth[x] * ~pad).sum(1) / length.clamp(min=1)
    return x.masked_fill(pad, 80), y


net = Rater()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(150):
    x, y = reviews(step)
    loss = F.smooth_l1_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (77, 78, 79, 149):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
