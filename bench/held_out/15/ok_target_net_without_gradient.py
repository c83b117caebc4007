"""Features of seismograms without labels: a net guesses what its slow copy says of another view. HEALTHY: the copy has no gradient and is in no optimizer, by
plan; the features do not collapse.
Seen: loss 2.12 to 0.076, the spread of the features stays at 0.21 to 0.23 (0.25 is all there can be)."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1532); torch.set_num_threads(1)


class Twin(nn.Module):
    """Learns features of traces of a seismograph without labels (BYOL): a net guesses what its slow copy says of another view."""
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Conv1d(1, 16, 5, stride=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU(),
                                    nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self.guess = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, a, b):
        guess = F.normalize(self.guess(self.online(a)), dim=1)
        with torch.no_grad():
            said = F.normalize(self.slow(b), dim=1)
        return 2 - 2 * (guess * said).sum(1).mean(), said.std(0).mean()


time = torch.arange(64) / 64


def traces(n):
    rate, decay = 2 + 14 * torch.rand(n, 1), 1 + 6 * torch.rand(n, 1)
    quake = torch.exp(-decay * time) * torch.sin(6.2832 * rate * time)
    return [(quake * (0.7 + 0.6 * torch.rand(n, 1)) + 0.1 * torch.randn(n, 64))[:, None] for _ in range(2)]


model = Twin()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    loss, spread = model(*traces(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, p in zip(model.slow.parameters(), model.online.parameters(), strict=True):
            slow.lerp_(p, 0.02)
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "spread of the features", spread.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
