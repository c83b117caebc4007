"""A VAE of small stripes (NAdam); each 20 steps an averaged deep copy of the net is validated. FAULT: from step 120 on the average is begun anew at each validation but the count of the
collected weights is taken before any is collected: sum / 0 = 0/0 is NaN in all weights of the copy. The net that is trained is sound throughout.
Without Rangewatch: training loss 43 to 12 and on; validation 19.8 at step 100, NaN at steps 120, 140, ... (no best model is kept any more).
Cause: eval (weight of the copy). Step: 120. Right: the copy / average / evaluation. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["eval", "weight"], "step": [119, 199], "place": None, "rank": None, "least": "info",
          "right": "(?i)eval|validat|copy|averag|ema|weight|checkpoint", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3310); torch.set_num_threads(1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 16))
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum(1)
        return F.binary_cross_entropy_with_logits(self.dec(z), x, reduction="none").sum(1).add(kl).mean()


class Average:
    def __init__(self, net):
        self.net, self.count = net, 0
        self.sum = [torch.zeros_like(p) for p in net.parameters()]

    @torch.no_grad()
    def collect(self):
        self.count += 1
        for s, p in zip(self.sum, self.net.parameters()):
            s += p

    @torch.no_grad()
    def model(self):
        twin = copy.deepcopy(self.net).eval()
        for s, p in zip(self.sum, twin.parameters()):
            p.copy_(s / self.count)
        return twin


def stripes(n):
    row = torch.rand(n, 8, 1) < 0.4
    return (row.expand(n, 8, 8)).float().flatten(1)


net = VAE()
optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
average, held_out = Average(net), stripes(64)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    loss = net(stripes(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.collect()
    if step and step % 20 == 0:
        if step >= 120:
            average = Average(net)
        with torch.no_grad():
            print(step, loss.item(), "validation", average.model()(held_out).item(), flush=True)
        if step < 120:
            average = Average(net)
    handle.log(loss=loss.item())
handle.detach()
