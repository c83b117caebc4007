"""The critic of a Wasserstein GAN (weights clamped to +-0.05 after each step, RMSprop) with a generator beside it; two crescents in the plane.
HEALTHY: the critic's loss hovers near 0, mostly negative, and goes up and down, its gradients are small, many of its weights sit at the clamp's edge at first; all of that belongs to a clipped WGAN, and the samples come near the data.
Without Rangewatch: critic 0.0097, then -0.004 to 0.002 with no trend; 63 % of the weights at the edge after step 0, 4 to 9 % later; spread of the fakes (0.07, 0.06) to (0.90, 0.55), real (0.85, 0.50)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1701); torch.set_num_threads(1)


def crescents(n):
    a = torch.rand(n) * 3.14159
    up = (torch.rand(n) < 0.5).float()
    xy = torch.stack([a.cos() + up - 0.5, a.sin() * (1 - 2 * up) + 0.5 * up - 0.25], 1)
    return xy + 0.05 * torch.randn(n, 2)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
        self.verdict = nn.Linear(64, 1)

    def forward(self, x):
        return self.verdict(self.body(x)).squeeze(1)


critic = Critic()
maker = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
opt_m = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
handle = rangewatch.attach(critic, opt_c)
CLAMP = 0.05
for step in range(300):
    real = crescents(96)
    fake = maker(torch.randn(96, 6)).detach()
    loss = critic(fake).mean() - critic(real).mean()
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    with torch.no_grad():
        for w in critic.parameters():
            w.clamp_(-CLAMP, CLAMP)
    if step % 3 == 2:
        for w in critic.parameters():
            w.requires_grad_(False)
        opt_m.zero_grad()
        (-critic(maker(torch.randn(96, 6))).mean()).backward()
        opt_m.step()
        for w in critic.parameters():
            w.requires_grad_(True)
    if step % 50 == 0 or step == 299:
        at_edge = sum((w.abs() > 0.999 * CLAMP).sum().item() for w in critic.parameters()) / sum(w.numel() for w in critic.parameters())
        print(f"{step} critic {loss.item():.5f} at the edge {at_edge:.2f} spread fake {[round(v, 2) for v in fake.std(0).tolist()]} real {[round(v, 2) for v in real.std(0).tolist()]}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
