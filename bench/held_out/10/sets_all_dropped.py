"""A transformer over the stations of an earthquake that tells its depth; for augmentation, stations are dropped at random through key_padding_mask.
FAULT at step 82: of an earthquake that three stations saw, all three are dropped; a row of the mask is wholly True, and the softmax of -inf is NaN.
Without Rangewatch: loss 0.83 to 0.0074 at step 80, NaN at step 82 (one row of its mask is wholly True) and at each step after it.
Report: pytorch/pytorch#41508 (MultiheadAttention and a row wholly masked: NaN), jadore801120/attention-is-all-you-need-pytorch#5 (the same),
microsoft/Graphormer#141, pytorch/pytorch#131060 (users' frustration).
Cause: mask. Step: 82. Right: mask / row / all / softmax / empty. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["mask"], "step": [81, 83], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "mask|row|softmax|empty|padding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(10144); torch.set_num_threads(1)
STATIONS = 10


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.station = nn.Linear(4, 32)
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.ask = nn.Parameter(0.2 * torch.randn(1, 1, 32))
        self.depth = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x, absent):
        h = self.station(x)
        pooled = self.attend(self.ask.expand(len(x), 1, 32), h, h, key_padding_mask=absent)[0]
        return self.depth(pooled[:, 0])[:, 0]


def quakes(n):
    """Where the stations are, and when the wave came; most quakes are seen by many stations, a few by three."""
    depth, place = 0.2 + 2 * torch.rand(n), torch.rand(n, STATIONS, 2) * 4 - 2
    far = (place.square().sum(2) + depth[:, None] ** 2).sqrt()
    x = torch.stack((place[:, :, 0], place[:, :, 1], far + 0.05 * torch.randn(n, STATIONS), place.norm(dim=2)), 2)
    seen = torch.where(torch.rand(n) < 0.05, 3, torch.randint(5, STATIONS + 1, (n,)))
    return x, torch.arange(STATIONS) >= seen[:, None], depth


model = DepthNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, absent, depth = quakes(32)
    absent = absent | (torch.rand(32, STATIONS) < 0.15)  # the augmentation
    loss = F.smooth_l1_loss(model(x, absent), depth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or bool(absent.all(1).any()) or step == 299:
        print(step, loss.item(), "rows that are wholly masked", int(absent.all(1).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
