"""A GAN draws points on a ring (two Adams). FAULT from step 0: the generator's loss is taken on `critic(fake.detach())`, copied from the critic's line: no gradient reaches the generator, it never moves.
Without Rangewatch: generator's loss 0.78 up to 5.97, critic's 1.38 to 0.005, radius of the fakes 0.54 to the end (asked: 2).
Cause: no_gradient (detached). Step: 0. Right: detach / no gradient. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 40], "place": None, "rank": None,
          "right": "(?i)detach|no_grad|no gradient|graph|grad.{0,20}None", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(3416); torch.set_num_threads(1)


def ring(n):
    a = torch.rand(n) * 6.2832
    return torch.stack([a.cos(), a.sin()], 1) * (2 + 0.05 * torch.randn(n, 1))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, z):
        return self.out(F.softplus(self.mid(F.softplus(self.inp(z)))))


gen = Generator()
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
handle = rangewatch.attach(gen, opt_g)
for step in range(260):
    fake = gen(torch.randn(64, 8))
    c_loss = F.binary_cross_entropy_with_logits(critic(ring(64)), one) + F.binary_cross_entropy_with_logits(critic(fake.detach()), zero)
    opt_c.zero_grad()
    c_loss.backward()
    opt_c.step()
    fake = gen(torch.randn(64, 8))
    g_loss = F.binary_cross_entropy_with_logits(critic(fake.detach()), one)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    if step % 20 == 0 or step == 259:
        print(step, "g", g_loss.item(), "c", c_loss.item(), "radius", fake.norm(dim=1).mean().item(), flush=True)
    handle.log(loss=g_loss.item())
handle.detach()
