"""A net for a pendulum on a cart whose layers are to be products of two thin weights. FAULT from the start: the parametrization is registered after the
optimizer was made; the optimizer holds the old weights, and the new ones (original0, original1) never move.
Without Rangewatch: loss 1.56 to 1.1 to 1.3 at the end, four parameters did not move in 200 steps; whole weights that move give 0.5 from step 40 on.
Cause: optimizer or no_gradient. Step: 0. Place: first / second, parametrizations. Right: optimizer / not in / after. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 120], "place": ".*(first|second|original).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "optimizer|not in|param_groups|parametri[sz]|after|registered|does not move|unchanged|stand"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
import rangewatch

torch.manual_seed(1527); torch.set_num_threads(1)


class LowRank(nn.Module):
    """A weight as the product of two thin ones."""
    def forward(self, left, right):
        return left @ right

    def right_inverse(self, weight):
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        return u[:, :8] * s[:8], v[:8]


class Pendulum(nn.Module):
    """The change of the state of a pendulum on a cart, on a small chip."""
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 64), nn.Linear(64, 64)
        self.state = nn.Linear(64, 4)

    def forward(self, x):
        return self.state(F.softplus(self.second(F.softplus(self.first(x)))))


def states(n):
    s, force = torch.randn(n, 4), torch.randn(n, 1)
    angle, turn = s[:, 0], s[:, 1]
    ahead = torch.stack((turn, -2 * torch.sin(2 * angle) - 0.3 * turn + force[:, 0] * torch.cos(angle), s[:, 3], force[:, 0] - 0.2 * s[:, 3]), 1)
    return torch.cat((s, force), 1), ahead + 0.02 * torch.randn(n, 4)


model = Pendulum()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for layer in (model.first, model.second):  # makes two new parameters each, which the optimizer does not hold
    parametrize.register_parametrization(layer, "weight", LowRank())
start = {n: p.detach().clone() for n, p in model.named_parameters()}
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = states(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        still = [n.replace("parametrizations.", "") for n, p in model.named_parameters() if torch.equal(p, start[n])]
        print(step, loss.item(), "did not move", still, flush=True)
    handle.log(loss=loss.item())
handle.detach()
