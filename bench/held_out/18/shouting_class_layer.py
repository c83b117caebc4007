"""A residual net names the fault of a gear box from its vibration; SGD. FAULT at step 0: the last layer was initialised with normal_(std=3) (0.03 was
meant): logits of +-40, a first loss of seventeen times log(8), and a gradient that hurls the layers below about.
Without Rangewatch: loss 35.7 at step 0, 99.0 at step 1, 5.7 at step 10, 1.1 at step 20, and up to 3.1 at step 160; with a deviation of 0.03 it is 2.11 at
step 0 and 0.003 at step 20.
Cause: weight. Step: 0 to 20. Right: initialisation / std / last layer / scale of the weights. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["weight"], "step": [0, 20], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "(?i)initiali|\\binit|\\bstd\\b|deviation|smaller weight|last layer|logit|head"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1820); torch.set_num_threads(1)
FAULTS = 8
order = 2.0 + 1.5 * torch.arange(FAULTS)


class Gear(nn.Module):
    def __init__(self):
        super().__init__()
        self.wave = nn.Linear(96, 80)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(80), nn.Linear(80, 80), nn.GELU(), nn.Linear(80, 80)) for _ in range(3))
        self.norm = nn.LayerNorm(80)
        self.fault = nn.Linear(80, FAULTS)
        nn.init.normal_(self.fault.weight, std=3.0)

    def forward(self, x):
        h = self.wave(x)
        for block in self.blocks:
            h = h + block(h)
        return self.fault(self.norm(h))


def vibrations(n):
    fault = torch.randint(0, FAULTS, (n,))
    time = torch.arange(96) / 96 * 6.2832
    wave = torch.cos(order[fault][:, None] * time + 0.5 * torch.randn(n, 1)) + 0.5 * torch.cos(2 * time)
    return wave + 0.4 * torch.randn(n, 96), fault


model = Gear()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, fault = vibrations(32)
    loss = F.cross_entropy(model(x), fault)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 5, 10, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
