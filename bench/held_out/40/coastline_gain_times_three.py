"""Signed distance to a coastline, fitted by a coordinate network of eight tanh layers (xavier initialisation), SGD with momentum and clipping.
FAULT at step 0: the gain reads 5 * 3 and was meant to be 5 / 3 (the gain for tanh): every layer's sums have a deviation of some 15, all tanh units are shut at -1 or +1, and the function is noise with steps.
Without Rangewatch: loss 0.35, 0.32 to 0.40 till step 60 and 0.13 to 0.16 at the end; to answer with the mean would give 0.09.
Cause: weight (initialised nine times too large). Step: 0. Right: gain 5/3, xavier / orthogonal initialisation. Wrong: raise the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 40], "place": None, "rank": None,
          "right": r"(?i)init|gain|saturat|weights?.*(large|big)|xavier|scale", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(300)
torch.set_num_threads(1)


class TanhLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)
        nn.init.xavier_normal_(self.lin.weight, gain=5 * 3)
        nn.init.zeros_(self.lin.bias)

    def forward(self, x):
        return torch.tanh(self.lin(x))


def coast(xy):
    angle = torch.atan2(xy[:, 1], xy[:, 0])
    return (xy.norm(dim=1) - 0.6 - 0.15 * torch.sin(3 * angle) - 0.05 * torch.cos(7 * angle))[:, None]


layers = [TanhLayer(2, 96)] + [TanhLayer(96, 96) for _ in range(7)] + [nn.Linear(96, 1)]
sdf = nn.Sequential(*layers)
optimizer = torch.optim.SGD(sdf.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(sdf, optimizer)
for step in range(220):
    xy = 2 * torch.rand(128, 2) - 1
    target = coast(xy)
    loss = nn.functional.mse_loss(sdf(xy), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(sdf.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step} loss {loss.item():.5f} (variance of the target {target.var().item():.3f})", flush=True)
handle.detach()
