"""A net that tells a bell's pitch and size from its partials, in two phases. FAULT from step 100 on: the second phase sets the weight_decay of AdamW in per
cent, 100 where 1.00 was meant; with a rate of 2e-3 each step takes a fifth of each weight away, and the net dies down.
Without Rangewatch: loss 0.82 to 0.023 at step 99, 0.31 at step 101, 0.78 at step 105, 0.85 at the end; the norm of the first weight 6.3 to 5.0 at step 100 and 8e-6.
Cause: regularization (weight decay) or optimizer. Step: 100. Right: weight decay / decay / shrink / norm of the weights / regularisation. Wrong: GradScaler,
mask, bfloat16."""
EXPECT = {"cause": ["regularization", "optimizer", "weight"], "step": [99, 115], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "decay|shrink|shrunk|regulari|weight"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1616); torch.set_num_threads(1)
partials = torch.tensor([0.5, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0])


class Bell(nn.Module):
    def __init__(self):
        super().__init__()
        self.hear = nn.Sequential(nn.Linear(64, 80), nn.SiLU(), nn.Linear(80, 40), nn.SiLU())
        self.pitch, self.size = nn.Linear(40, 1), nn.Linear(40, 1)

    def forward(self, x):
        h = self.hear(x)
        return torch.cat((self.pitch(h), self.size(h)), 1)


def bells(n):
    pitch, size = 8 + 10 * torch.rand(n, 1), torch.rand(n, 1)
    lines = torch.exp(-((torch.arange(64.0) - (pitch * partials)[:, :, None]) / (1 + size[:, :, None])) ** 2)
    return lines.sum(1) + 0.05 * torch.randn(n, 64), torch.cat(((pitch - 13) / 3, 3 * size - 1.5), 1)


model = Bell()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:
        for group in optimizer.param_groups:
            group["weight_decay"] = 100
    x, y = bells(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 97 < step < 106 or step == 219:
        print(step, loss.item(), "norm", model.hear[0].weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
