"""The first Wasserstein GAN: RMSprop for critic and generator, the critic's weights clipped to 0.03 after each of its steps (many lie exactly at the
border), no batch norm. The critic's loss is negative and comes back towards 0, the generator's wanders. HEALTHY.
Without Rangewatch: the critic -0.0 to a few thousandths either side of 0, the generator -0.07 to -0.02; the spread of the samples 1.5 to 2.2 by 0.7
to 1.1 (true 1.41 by 0.71)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(832); torch.set_num_threads(1)


class WGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))


def real(n):
    angle = torch.rand(n, 1) * 6.283
    return torch.cat([2 * torch.cos(angle), torch.sin(angle)], 1) + 0.05 * torch.randn(n, 2)


model = WGAN()
critic_step = torch.optim.RMSprop(model.critic.parameters(), lr=1e-3)
generator_step = torch.optim.RMSprop(model.generator.parameters(), lr=5e-4)
handle = rangewatch.attach(model, [critic_step, generator_step])
for step in range(360):
    fake = model.generator(torch.randn(96, 6))
    if step % 4 != 3:
        loss = model.critic(fake.detach()).mean() - model.critic(real(96)).mean()
        critic_step.zero_grad()
        loss.backward()
        critic_step.step()
        with torch.no_grad():
            for p in model.critic.parameters():
                p.clamp_(-0.03, 0.03)
        handle.log(critic=loss.item())
    else:
        loss = -model.critic(fake).mean()
        generator_step.zero_grad()
        loss.backward()
        generator_step.step()
        handle.log(generator=loss.item())
    if step % 20 in (2, 3):
        print(step, loss.item(), "spread", fake.std(0).tolist(), flush=True)
handle.detach()
