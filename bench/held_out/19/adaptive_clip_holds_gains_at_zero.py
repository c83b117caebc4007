"""A residual net (each block times a gain that begins at 0) that tells wines by their spectra. FAULT at step 0: gradients are clipped by value to a
hundredth of the weight's own size (adaptive clipping), without the floor of 1e-3 that the method has; a gain at 0 has a limit of 0 and stays at 0 for
ever, so that none of the blocks is ever used.
Without Rangewatch: loss 2.22 at step 0, 2.28 (chance is 2.20) at the end, largest gain 0; with a floor of 0.1 it is 0.009 and the largest gain 0.49.
Cause: clip (no_gradient where only the zero gradient is seen). Step: any. Place: the gains or the blocks they shut. Right: clip / floor. Wrong: GradScaler,
mask."""
EXPECT = {"cause": ["clip", "no_gradient", "optimizer"], "step": [0, 199], "place": ".*(gain|blocks).*", "rank": 0, "least": "info",
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)clip|floor|limit|zero|gain|init"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1924); torch.set_num_threads(1)
WINES, BANDS = 9, 36


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.SELU(), nn.Linear(width, width))
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.gain * self.net(x)


class Wines(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.entry = nn.Linear(BANDS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.out = nn.Linear(width, WINES)

    def forward(self, x):
        return self.out(self.blocks(self.entry(x)))


@torch.no_grad()
def clip_by_value(parameters, share=0.01):
    for p in parameters:
        limit = share * p.abs()  # .clamp(min=1e-3) is missing
        p.grad.copy_(torch.maximum(torch.minimum(p.grad, limit), -limit))


centre = torch.randn(WINES, BANDS)
model = Wines()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    y = torch.randint(0, WINES, (64,))
    sign = torch.randint(0, 2, (64, 1)) * 2.0 - 1  # half of the spectra are negatives, so that a linear net cannot tell them
    loss = F.cross_entropy(model(sign * centre[y] + 0.5 * torch.randn(64, BANDS)), y)
    optimizer.zero_grad()
    loss.backward()
    clip_by_value(model.parameters())
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "largest gain", max(b.gain.abs().max().item() for b in model.blocks), flush=True)
    handle.log(loss=loss.item())
handle.detach()
