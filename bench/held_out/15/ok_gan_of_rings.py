"""Two nets against each other that draw the points of a ring, with an optimizer each. HEALTHY: the losses go up and down and do not fall; the one that counts
is the radius.
Seen: loss of the maker 0.66 to 1.17, of the critic 0.94 to 1.39, with no trend; the mean radius goes from 0.21 over 1.46 to 0.82 to 1.18 (right: 1)."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1530); torch.set_num_threads(1)


class Pair(nn.Module):
    """Draws points of a ring, against a critic."""
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(8, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 2))
        self.critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))


def ring(n):
    angle = 6.2832 * torch.rand(n, 1)
    return torch.cat((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(n, 2)


model = Pair()
opt_m = torch.optim.Adam(model.maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(model.critic.parameters(), lr=4e-3, betas=(0.5, 0.9))
handle = rangewatch.attach(model, [opt_m, opt_c])
for step in range(260):
    real, fake = ring(64), model.maker(torch.randn(64, 8))
    loss_c = F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake.detach())).mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    fake = model.maker(torch.randn(64, 8))
    loss_m = F.softplus(-model.critic(fake)).mean()
    opt_m.zero_grad()
    loss_m.backward()
    opt_m.step()
    if step % 20 == 0 or step == 259:
        print(step, loss_m.item(), loss_c.item(), "radius", fake.norm(dim=1).mean().item(), flush=True)
    handle.log(loss=loss_m.item(), critic=loss_c.item())
handle.detach()
