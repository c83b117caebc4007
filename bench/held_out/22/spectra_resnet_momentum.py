"""A residual net of 1-D convolutions that reads the temperature of a star from its spectrum, plain float32, SGD with momentum.
FAULT at step 0: the rate is 4.0, some four hundred times what this net bears.
Without Rangewatch: loss 2.3, 13378, inf at steps 0 to 2 and NaN from step 3 on (with 0.01 it is 0.0015 at the end).
Causes: learning_rate. Right: lower the learning rate (a warm-up). Wrong: a GradScaler, loss scaling, an attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 12], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2204); torch.set_num_threads(1)
wave = torch.linspace(0.2, 2.0, 64)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv1d(c, c, 5, padding=2), nn.Conv1d(c, c, 5, padding=2)

    def forward(self, x):
        return x + 0.3 * self.b(torch.relu(self.a(torch.relu(x))))


model = nn.Sequential(nn.Conv1d(1, 24, 5, padding=2), Residual(24), Residual(24), Residual(24), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    heat = 0.5 + 1.5 * torch.rand(32, 1)
    x = 1 / wave ** 5 / (torch.exp(2.0 / (wave * heat)) - 1)
    x = x / x.amax(1, keepdim=True) + 0.02 * torch.randn(32, 64)
    loss = ((model(x[:, None]) - heat) ** 2).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step < 10 or step % 20 == 0 or step == 159:
        print(step, loss.item(), flush=True)
handle.detach()
