"""A GAN draws points on a ring. Its losses are the paper's, by hand: -(log D(x) + log(1 - D(G(z)))) and -log D(G(z)), D ends in a sigmoid. Adam, betas (0.5, 0.999). The agent watches the discriminator.
FAULT at step 19: natural. The points are 60 away from the origin and D's lr is 0.02: D grows so sure that its sigmoid is exactly 0 or 1 in float32 for some point; log(0) = -inf and its slope times the sigmoid's 0 is NaN.
Without Rangewatch: D 4.6 to 0.07 (step 16) and 3.6 (step 18), G 0.4 to 5.9; in step 19 D is inf and, after its update, G NaN; all NaN from step 20 on.
Cause: loss / forward_arithmetic / backward_arithmetic. Step: about 19. Right: BCEWithLogitsLoss / logsigmoid / clamp or eps in the log. Wrong: GradScaler, attention mask, bad rows in the data."""
EXPECT = {"cause": ["loss", "forward_arithmetic", "backward_arithmetic"], "step": [18, 21], "place": None, "rank": None,
          "right": r"(?i)log|sigmoid|clamp|\beps|saturat", "wrong": ["GradScaler", "(?i)attention mask", r"(?i)NaN in the (input|data|batch)"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(66)
torch.set_num_threads(1)


def ring(n):
    a = 6.2832 * torch.rand(n, 1)
    return 60 * torch.cat([a.cos(), a.sin()], 1) + 0.2 * torch.randn(n, 2)


def mlp(i, o, last):
    return nn.Sequential(nn.Linear(i, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, o), last)


G, D = mlp(8, 2, nn.Identity()), mlp(2, 1, nn.Sigmoid())
opt_G = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(D.parameters(), lr=2e-2, betas=(0.5, 0.999))
handle = rangewatch.attach(D, opt_D)
broken = False
for step in range(300):
    real, fake = ring(64), G(torch.randn(64, 8))
    loss_D = -(torch.log(D(real)) + torch.log(1 - D(fake.detach()))).mean()
    opt_D.zero_grad()
    loss_D.backward()
    opt_D.step()
    loss_G = -torch.log(D(fake)).mean()
    opt_G.zero_grad()
    loss_G.backward()
    opt_G.step()
    bad = not (loss_D.isfinite() and loss_G.isfinite())
    if step % 25 == 0 or bad and not broken:
        print(step, "D", loss_D.item(), "G", loss_G.item(), flush=True)
    broken = broken or bad
    handle.log(loss=loss_D.item())
handle.detach()
