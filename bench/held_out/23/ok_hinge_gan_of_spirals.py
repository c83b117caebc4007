"""HEALTHY: a GAN of points on a spiral with the hinge loss and spectral normalisation in the critic, two critic steps for each of the maker. Odd to a watcher:
the loss of the critic does not fall, the maker's is below 0 at times, half of the hinge is flat.
Without Rangewatch: the loss of the critic is 1.99 at the start, 1.72 at step 40, about 2.0 at the end; the energy distance of made and real points
falls from 0.50 to 0.04."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
import rangewatch

torch.manual_seed(2342); torch.set_num_threads(1)
maker = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
critic = nn.Sequential(spectral_norm(nn.Linear(2, 96)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(96, 96)), nn.LeakyReLU(0.1), nn.Linear(96, 1))
optimizer_m = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(critic, optimizer)


def spiral(n):
    a = 1 + 8 * torch.rand(n, 1)
    return torch.cat((a * a.cos(), a * a.sin()), 1) / 5 + 0.03 * torch.randn(n, 2)


def distance(a, b):  # energy distance of two clouds
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


for step in range(260):
    real, fake = spiral(128), maker(torch.randn(128, 6))
    loss = torch.relu(1 - critic(real)).mean() + torch.relu(1 + critic(fake.detach())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values = {"loss": loss.item()}
    if step % 2:
        loss_m = -critic(maker(torch.randn(128, 6))).mean()
        optimizer_m.zero_grad()
        loss_m.backward()
        optimizer_m.step()
        values["loss_maker"] = loss_m.item()
    if step % 20 == 0 or step == 259:
        with torch.no_grad():
            print(step, values, "distance", distance(spiral(800), maker(torch.randn(800, 6))), flush=True)
    handle.log(**values)
handle.detach()
