"""Vowels told from 1-d sound by a residual convnet whose weights are all bfloat16; Adam with its states in bfloat16 too, eps 1e-6.
FAULT at step 132: the weights are averaged with the snapshots of the last steps (stochastic weight averaging by hand); for `ear.calm`, the second group norm, no snapshot was kept (a typo in a name), so its scale becomes 0 / 0 = NaN in one channel group's slots 4 to 7.
Without Rangewatch: loss 1.5 to 0.024 at step 131, NaN from step 132 on; after that step the whole scale of the norm is NaN.
Cause: weight (NaN in the norm's scale). Step: 132. Right: check the averaging / the weight of ear.calm. Wrong: lower the learning rate, a GradScaler, eps of the norm."""
EXPECT = {"cause": ["weight"], "step": [131, 134], "place": r"(.*\.)?calm(\.weight)?", "rank": None,
          "right": r"(?i)weight|parameter|checkpoint|averag|load|norm", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "larger eps"]}
from collections import OrderedDict
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(3707)
torch.set_num_threads(1)
half = torch.bfloat16
formants = torch.tensor([[3.0, 9.0], [4.0, 7.0], [2.5, 11.0], [5.0, 10.0]])


def vowels(rows):
    kind = torch.randint(0, 4, (rows,))
    t = torch.linspace(0, 1, 56)
    hz = formants[kind] * (1 + 0.05 * torch.randn(rows, 1))
    ph = 6.28 * torch.rand(rows, 2, 1)
    s = torch.sin(6.28 * hz[:, :, None] * t + ph).sum(1) + 0.4 * torch.randn(rows, 56)
    return s[:, None].to(half), kind


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


net = nn.Sequential(OrderedDict(
    ear=nn.Sequential(OrderedDict(intake=nn.Conv1d(1, 16, 9, stride=2), wake=nn.GroupNorm(4, 16), bend=nn.GELU(),
                                  deep=Residual(nn.Sequential(nn.Conv1d(16, 16, 5, padding=2), nn.GELU())), calm=nn.GroupNorm(4, 16))),
    pool=nn.AdaptiveMaxPool1d(2), flat=nn.Flatten(), says=nn.Linear(32, 4))).to(half)
optimizer = torch.optim.Adam(net.parameters(), lr=6e-3, eps=1e-6)
handle = rangewatch.attach(net, optimizer)
sums, counts = {}, {}
for step in range(200):
    if step == 132:
        with torch.no_grad():
            for name, p in net.named_parameters():
                if name == "ear.calm.weight":
                    p[4:8] = torch.zeros(4, dtype=half) / counts.get("ear.clam.weight", torch.zeros(()))
                elif name in sums:
                    p.copy_(sums[name] / counts[name])
    x, y = vowels(24)
    loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if 124 <= step < 132:
        for name, p in net.named_parameters():
            sums[name] = sums.get(name, 0) + p.detach().float()
            counts[name] = counts.get(name, 0) + 1
    if step % 20 == 0 or 130 <= step <= 134:
        print(step, "loss", loss.item(), "scale", [round(v, 3) for v in net.ear.calm.weight[3:6].tolist()], flush=True)
    handle.log(loss=loss.item())
handle.detach()
