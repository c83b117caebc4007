"""Fine-tuning: a dilated 1-D convnet that was trained on one task (done first, without a watch) gets a new head for another task on the same signals; the backbone is frozen for 100 steps. Adam.
FAULT at step 100: the backbone's layers are unfrozen and put into the head's parameter group (rate 0.05), not into one of their own with 1e-4.
Without Rangewatch: loss 1.2 to 0.6 at steps 60 to 100; 16.5 at step 101, near 1.1 (the guess of one of three) to the end (0.22 with a group of its own at 1e-4).
Cause: learning_rate (optimizer: the group). Step: 100. Right: learning rate / parameter group. Wrong: GradScaler, attention mask, labels."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [99, 110], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|group", "wrong": ["GradScaler", "attention mask", "[Ll]abels", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3317); torch.set_num_threads(1)
T = torch.arange(48.0)


class Backbone(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 5, padding=2)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (1, 2, 4))

    def forward(self, x):
        h = F.leaky_relu(self.stem(x))
        for conv in self.layers:
            h = h + F.leaky_relu(conv(h))
        return h.mean(2)


def signals(n):
    rate, decay = torch.randint(0, 6, (n,)), torch.randint(0, 3, (n,))
    wave = torch.sin((0.25 + 0.22 * rate[:, None]) * T + 6.28 * torch.rand(n, 1))
    x = wave * torch.exp(-T * torch.tensor([0.0, 0.03, 0.09])[decay][:, None]) + 0.1 * torch.randn(n, 48)
    return x[:, None], rate, decay


backbone = Backbone()
first = nn.Sequential(backbone, nn.Linear(24, 6))
pre = torch.optim.Adam(first.parameters(), lr=2e-3)
for _ in range(250):
    x, rate, _d = signals(32)
    pre.zero_grad()
    F.cross_entropy(first(x), rate).backward()
    pre.step()
backbone.requires_grad_(False)
net = nn.Sequential()
net.add_module("backbone", backbone)
net.add_module("head", nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 3)))
optimizer = torch.optim.Adam([{"params": list(net.head.parameters()), "lr": 0.05}])
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    if step == 100:
        backbone.requires_grad_(True)
        optimizer.param_groups[0]["params"].extend(backbone.parameters())
    x, _r, decay = signals(32)
    loss = F.cross_entropy(net(x), decay)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 106 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
