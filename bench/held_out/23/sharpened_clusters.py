"""Clusters of customers without labels: a net gives probabilities, the loss makes each row sure (entropy of the row) and the clusters equal (entropy of the
mean). The entropy is written -(p * log p). FAULT at step 100: the temperature of the softmax goes from 1 to 0.02 in one move; the smallest p are exactly 0 in
float32 and 0 times log 0 is NaN.
Without Rangewatch: loss -0.90 to -2.35 at step 99, NaN at step 100 and at each step after it.
Causes: forward_arithmetic (log of 0). Right: log / entropy / epsilon / clamp / log_softmax. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [99, 101], "place": None, "rank": 0,
          "right": "(?i)log|entrop|eps|clamp|softmax|zero", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2319); torch.set_num_threads(1)
centres = 2 * torch.randn(6, 14)


class Entropy(nn.Module):
    def forward(self, p):
        return -(p * torch.log(p)).sum(-1)


class Clusterer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 80), nn.Mish(), nn.Linear(80, 80), nn.Mish(), nn.Linear(80, 6))
        self.entropy = Entropy()

    def forward(self, x, temperature):
        p = (self.net(x) / temperature).softmax(1)
        return self.entropy(p).mean() - 1.5 * self.entropy(p.mean(0))


model = Clusterer()
optimizer = torch.optim.RAdam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    x = centres[torch.randint(0, 6, (96,))] + torch.randn(96, 14)
    loss = model(x, 1.0 if step < 100 else 0.02)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
