"""An autoencoder of woven patterns, trained with SGD whose momentum is warmed up from 0.5 by 0.005 a step. FAULT from step 100 on: nobody put an end to the warm-up;
the momentum reaches 1.0 at step 100 and goes on, the buffer forgets nothing and then grows of itself.
Without Rangewatch: loss 0.37 to 0.16 at step 100, 0.17 at step 110, 0.21 at step 120, 0.40 at step 130, 8.8 at step 140, NaN from step 150 on.
Cause: optimizer (momentum past one), or learning_rate, which it looks like. Step: 90 (the momentum is past 0.95) to 150 (the loss has left the ground).
Right: momentum / optimizer / buffer / update / diverge. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [90, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "momentum|optimizer|buffer|update|diverg"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1614); torch.set_num_threads(1)
threads = torch.randn(4, 36)


class Loom(nn.Module):
    def __init__(self):
        super().__init__()
        self.code = nn.Sequential(nn.Linear(36, 24), nn.ELU(), nn.Linear(24, 6))
        self.weave = nn.Sequential(nn.Linear(6, 24), nn.ELU(), nn.Linear(24, 36))

    def forward(self, x):
        return self.weave(self.code(x))


def patterns(n):
    return torch.sin(torch.randn(n, 4) @ threads * 0.5) + 0.05 * torch.randn(n, 36)


model = Loom()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    for group in optimizer.param_groups:
        group["momentum"] = 0.5 + 0.005 * step
    x = patterns(64)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 239:
        print(step, loss.item(), "momentum", optimizer.param_groups[0]["momentum"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
