"""A variational autoencoder with a cyclical weight of the KL term: 0 for the first part of each 60 steps, then up to 1; the loss rises in each cycle, and jumps
down at its end. HEALTHY.
Without Rangewatch: loss 22 at step 14, 15.8 at step 59, 11.5 at step 60; 2.9 at step 194 with weight 0 and 10.7 at step 239 with weight 1, each cycle better
than the one before."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1151); torch.set_num_threads(1)
chord = torch.randn(6, 40)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(40, 48), nn.SiLU(), nn.Linear(48, 12))
        self.decode = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 40))

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)
        return self.decode(z), kl


model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    weight = min(1.0, max(0.0, (step % 60 - 15) / 30))
    x = torch.tanh(torch.randn(64, 6)) @ chord / 2 + 0.2 * torch.randn(64, 40)
    again, kl = model(x)
    rebuilt = F.mse_loss(again, x, reduction="none").sum(1).mean()
    loss = rebuilt + weight * kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 14 or step in (59, 60, 61):
        print(step, loss.item(), "rebuilt", rebuilt.item(), "kl", kl.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
