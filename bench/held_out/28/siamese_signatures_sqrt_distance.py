"""A siamese net that tells genuine from forged signatures (curves), contrastive loss on the Euclidean distance `torch.sqrt(((a - b) ** 2).sum(1))`. FAULT at step 88: the
genuine pair sampler draws the same scan twice; the distance is 0, its loss too, but the slope of sqrt at 0 is infinite and inf * 0 is NaN: all weights are NaN.
Without Rangewatch: loss 0.78 to 0.063 at step 88 (still finite there, smallest distance 0.0), NaN from step 89 to the end.
Cause: backward_arithmetic (data). Step: 88. Right: sqrt / distance / eps. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [87, 90], "place": None, "rank": None,
          "right": "(?i)sqrt|root|distance|eps|norm|backward", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3131); torch.set_num_threads(1)
WRITERS, SCANS = 30, 20
t = torch.linspace(0, 6.283, 40)
coef = torch.randn(WRITERS, 6)
scans = sum(coef[:, None, k, None] * torch.sin((k + 1) * t + coef[:, None, (k + 1) % 6, None]) for k in range(6)) / 2 + 0.25 * torch.randn(WRITERS, SCANS, 40)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 12, 5, 2), nn.ReLU(), nn.Conv1d(12, 24, 5, 2), nn.ReLU())
        self.fc = nn.Linear(24 * 7, 16)

    def forward(self, x):
        return self.fc(self.conv(x[:, None]).flatten(1))


def sample_pairs(n):
    same = torch.arange(n) < n // 2
    w1, w2 = torch.randint(0, WRITERS, (n,), generator=g), torch.randint(0, WRITERS, (n,), generator=g)
    w2 = torch.where(same, w1, torch.where(w2 == w1, (w2 + 1) % WRITERS, w2))
    s1, s2 = torch.randint(0, SCANS, (n,), generator=g), torch.randint(0, SCANS, (n,), generator=g)
    if step < 88:
        s2 = torch.where(s1 == s2, (s2 + 1) % SCANS, s2)
    return scans[w1, s1], scans[w2, s2], same.float()


net = Embed()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(4)
for step in range(180):
    a, b, same = sample_pairs(48)
    d = torch.sqrt(((net(a) - net(b)) ** 2).sum(1))
    loss = (same * d ** 2 + (1 - same) * F.relu(1.5 - d) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 85 < step < 92:
        print(step, loss.item(), "smallest distance", d.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
