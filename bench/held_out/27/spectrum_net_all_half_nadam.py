"""A net over spectra of stars that foretells their heat, wholly in fp16 (`.half()`), NAdam with the usual eps of 1e-8. FAULT from the start: eps
is 0 in fp16, and the mean square of a small gradient (below 6e-8) is 0 too: the first step divides by 0.
Without Rangewatch: loss 30 at step 0, weights inf after it, NaN from step 1.
Cause: eps or optimizer (weight: it is NaN after a step). Step: 0. Right: eps / fp16 / float32 weights. Wrong: attention mask."""
EXPECT = {"cause": ["eps", "optimizer", "weight"], "step": [0, 4], "place": None, "rank": None,
          "right": "(?i)eps|fp16|float16|half|float32|master|underflow|precision", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2724); torch.set_num_threads(1)
line = torch.linspace(0, 1, 48)


def stars(n):
    heat = torch.rand(n, 1)
    glow = torch.exp(-((line - 0.2 - 0.6 * heat) / 0.25) ** 2)
    dark = 0.5 * torch.exp(-((line - 0.5) / 0.03) ** 2) * (1 - heat)
    return (glow - dark + 0.05 * torch.randn(n, 48)).half(), (4 * heat - 2).half()


net = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1)).half()
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3, eps=1e-8)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = stars(32)
    loss = (net(x) - y).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 3, 5, 10, 179):
        least = min(optimizer.state[p]["exp_avg_sq"].min().item() for p in net.parameters())
        print(step, loss.item(), "least mean square", least, "weight", net[0].weight.float().abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
