"""A deep net of twelve convolutions, each with a sigmoid, that tells the wear of a bearing. FAULT from the start: the gradient is divided by four or more at
each sigmoid and is gone before it comes to the first layers.
Without Rangewatch: loss 1.14 at step 0, 1.08 to 1.13 (chance) to the end; the gradient of the first layer is 2e-12 beside 0.07 to 0.5 of the last.
Cause: no_gradient (vanishing), dead_units, backward_arithmetic or weight (initialisation). Step: 0. Right: vanish / sigmoid / residual. Wrong: detach, mask."""
EXPECT = {"cause": ["no_gradient", "dead_units", "backward_arithmetic", "weight"], "step": [0, 120], "place": ".*(deep).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "detach"],
          "right": "vanish|sigmoid|saturat|small gradient|ReLU|residual|initiali"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1519); torch.set_num_threads(1)
time = torch.arange(48) / 48


class Machine(nn.Module):
    """Sound or worn: the noise of a bearing."""
    def __init__(self):
        super().__init__()
        layers = [nn.Conv1d(1, 16, 5, padding=2), nn.Sigmoid()]
        for i in range(11):
            layers += [nn.Conv1d(16, 16, 3, padding=1, stride=2 if i in (3, 7) else 1), nn.Sigmoid()]
        self.deep = nn.Sequential(*layers)
        self.judge = nn.Linear(16, 3)

    def forward(self, x):
        return self.judge(self.deep(x[:, None]).mean(2))


def bearings(n):
    y = torch.randint(0, 3, (n,))
    rate = torch.tensor([3.0, 7.0, 13.0])[y][:, None]
    return torch.sin(6.2832 * (rate * time + torch.rand(n, 1))) * (1 + y[:, None]) + 0.2 * torch.randn(n, 48), y


model = Machine()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = bearings(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "gradient of the first", model.deep[0].weight.grad.norm().item(),
              "of the last", model.judge.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
