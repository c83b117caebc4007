"""An autoencoder of pressure fields; for validation the weights of the moving average (decay 0.999) are copied into it. FAULT at step 120: after the
first validation nobody puts the trained weights back; the average still is mostly the weights of the start, and the training goes on from there.
Without Rangewatch: loss 0.18 to 0.0034 at step 119, 0.176 at step 120, 0.048 at step 130, 0.0027 at the end (restored: 0.0013).
Cause: weight (overwritten outside of the optimizer) or eval. Step: 120. Right: average / restore / outside of the optimizer / overwritten.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["weight", "eval", "optimizer"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)averag|ema|restor|outside|overwrit|changed|load|checkpoint|copied|between"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2002); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij"))


def fields(n):
    centre, width = 1.6 * torch.rand(n, 2, 1, 1) - 0.8, 0.2 + 0.5 * torch.rand(n, 1, 1)
    return torch.exp(-((grid - centre) ** 2).sum(1) / width) - torch.exp(-((grid + centre) ** 2).sum(1) / width)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(144, 80), nn.GELU(), nn.Linear(80, 6))
        self.decode = nn.Sequential(nn.Linear(6, 80), nn.GELU(), nn.Linear(80, 144), nn.Unflatten(1, (12, 12)))

    def forward(self, x):
        return self.decode(self.encode(x))


model = Coder()
shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
held_out = fields(200)


def validate():
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(shadow[name])  # and never back
        model.eval()
        value = F.mse_loss(model(held_out), held_out).item()
        model.train()
    return value


for step in range(230):
    if step == 120:
        print("validation", validate(), flush=True)
    x = fields(48)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            shadow[name].lerp_(p, 0.001)
    if step % 20 == 0 or step in (119, 120, 121, 130, 229):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
