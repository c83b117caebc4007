"""A conv net over heart beats; its body is pre-trained and frozen, the head is trained first (SGD with momentum, 0.05). FAULT at step 90: the body is unfrozen
and comes as a new group with the rate 5 (0.05 * 100, where a hundredth was meant): its weights are thrown away at once.
Without Rangewatch: loss 1.51 to 0.21 at step 89, 345 at step 91, 1.38 to 1.41 to the end (log 4 is 1.386); the greatest weight of the body goes from 0.44
to 540.
Cause: learning_rate (or optimizer). Step: 90. Place: the body. Right: learning rate / group. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [89, 96], "place": "body.*", "rank": None,
          "right": "(?i)learning rate|\\blr\\b|group|step size", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2705); torch.set_num_threads(1)
t = torch.linspace(0, 1, 80)


def beats(n, late=0.0):
    y = torch.randint(0, 4, (n,))
    at = 0.4 + 0.1 * torch.rand(n, 1)
    width = torch.tensor([0.02, 0.06, 0.02, 0.03])[y][:, None]
    wave = torch.exp(-((t - at) / width) ** 2)
    wave -= (y == 2)[:, None] * 0.6 * torch.exp(-((t - at - 0.12) / 0.03) ** 2)
    wave += (y == 3)[:, None] * torch.sin(25 * (t - at)) * 0.4
    return (wave * (1 + late * torch.randn(n, 1)) + 0.25 * torch.randn(n, 80))[:, None], y


class Beats(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 16, 7, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU(), nn.Conv1d(24, 32, 5, 2), nn.ReLU())
        self.head = nn.Linear(32 * 7, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


net = Beats()
pre = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(60):
    x, y = beats(64)
    loss = F.cross_entropy(net(x), y)
    pre.zero_grad(); loss.backward(); pre.step()
net.head.reset_parameters()
net.body.requires_grad_(False)

base = 0.05
optimizer = torch.optim.SGD(net.head.parameters(), lr=base, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    if step == 90:
        net.body.requires_grad_(True)
        optimizer.add_param_group({"params": net.body.parameters(), "lr": base * 100})
    x, y = beats(64, late=0.2)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 92, 189):
        print(step, loss.item(), "body", net.body[0].weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
