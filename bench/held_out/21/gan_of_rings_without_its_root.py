"""A GAN that draws points on two rings. FAULT at step 0: the generator's optimizer is given generator.body and generator.tail only; generator.root, its first
layer, gets gradients at each backward and never moves (nor are its gradients ever cleared: zero_grad of the optimizer does not know it).
Without Rangewatch: the loss of the generator is 0.67 to 0.95, the rings come about; root has moved by 0.0 after 220 steps, its gradient (never cleared) has a norm of
0.007 to 3.8; with root in the optimizer it moves by 0.12.
Cause: optimizer (a layer that it does not hold), or no_gradient as far as it reads as "does not learn". Step: 0 to the end, a state. Place: root. Right:
optimizer / parameters. Wrong: GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 219], "place": "root.*", "rank": 0,
          "right": "(?i)optimi[sz]er|param", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2112)
torch.set_num_threads(1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.root = nn.Linear(8, 96)
        self.body = nn.Sequential(nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2))
        self.tail = nn.Linear(96, 2)

    def forward(self, z):
        return self.tail(self.body(self.root(z)))


def rings(n):
    angle, radius = 6.2832 * torch.rand(n), 1.0 + (torch.rand(n) < 0.5).float()
    return torch.stack((angle.cos() * radius, angle.sin() * radius), 1) + 0.05 * torch.randn(n, 2)


generator = Generator()
critic = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
g_opt = torch.optim.Adam([*generator.body.parameters(), *generator.tail.parameters()], lr=1e-3, betas=(0.5, 0.99))
d_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
handle = rangewatch.attach(generator, g_opt)
start = generator.root.weight.detach().clone()
for step in range(220):
    real, fake = rings(128), generator(torch.randn(128, 8))
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    loss = F.softplus(-critic(fake)).mean()
    g_opt.zero_grad()
    loss.backward()
    g_opt.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), d_loss.item(), "radius", fake.norm(dim=1).mean().item(), "root moved", (generator.root.weight - start).abs().max().item(),
              "its gradient", generator.root.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item(), d_loss=d_loss.item())
handle.detach()
