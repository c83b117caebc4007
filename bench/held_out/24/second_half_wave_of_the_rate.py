"""A conditional VAE of handwritten-like strokes. The rate follows a cosine from 3e-3 down to 3e-5, then a second cosine. FAULT at step 110: the second cosine was written for a
plain SGD and begins at 0.3, a hundred times the first.
Without Rangewatch: loss 51 to 3.1 at step 109, 3.5 at step 110, 66 at 111, 223 at 112, 2.8 at the end.
Cause: learning_rate. Step: 110. Right: learning rate / schedule / restart. Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate"], "step": [109, 118], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul|restart", "wrong": ["GradScaler", "attention mask"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2427); torch.set_num_threads(1)


class StrokeVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(4, 8)
        self.see = nn.Sequential(nn.Linear(72, 96), nn.Softplus(), nn.Linear(96, 12))
        self.draw = nn.Sequential(nn.Linear(14, 96), nn.Softplus(), nn.Linear(96, 64))

    def forward(self, x, k):
        c = self.kind(k)
        mean, log_var = self.see(torch.cat((x, c), 1)).chunk(2, 1)
        z = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        kl = 0.5 * (mean ** 2 + log_var.exp() - 1 - log_var).sum(1)
        return self.draw(torch.cat((z, c), 1)), kl


t = torch.linspace(0, 6.28, 32)


def strokes(n):
    k = torch.randint(0, 4, (n,))
    a, b = 0.5 + torch.rand(2, n, 1)
    f = (1 + k)[:, None]
    return torch.cat((a * torch.cos(t * f), b * torch.sin(t)), 1) + 0.05 * torch.randn(n, 64), k


def rate(step):
    peak, done = (3e-3, step / 110) if step < 110 else (0.3, (step - 110) / 110)
    return 0.01 * peak + 0.99 * peak * 0.5 * (1 + math.cos(math.pi * done))


model = StrokeVae()
optimizer = torch.optim.Adamax(model.parameters(), lr=rate(0))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    optimizer.param_groups[0]["lr"] = rate(step)
    x, k = strokes(48)
    y, kl = model(x, k)
    loss = ((y - x) ** 2).sum(1).mean() + 0.1 * kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 116 or step == 199:
        print(step, loss.item(), "rate", rate(step), flush=True)
    handle.log(loss=loss.item())
handle.detach()
