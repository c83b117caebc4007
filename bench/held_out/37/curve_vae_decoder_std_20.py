"""A variational autoencoder of noisy pulse curves, AdamW.
FAULT at step 0: the decoder's first layer is drawn with std=20 where the paper's table, in thousandths, meant 0.02.
Without Rangewatch: loss 105080 at step 0, 5239 at 30, 183 at the end (with 0.02: 9.5).
Cause: weight (initialisation a thousand times too large). Step: from 0. Right: initialise `from_code` smaller. Wrong: GradScaler, attention mask, data, raise the learning rate."""
EXPECT = {"cause": ["weight"], "step": [0, 60], "place": r"(.*\.)?(from_code|paint|draw)(\..*)?", "rank": None,
          "right": r"(?i)init|deviation|std|weight.{0,40}(large|big|huge)|(large|big|huge).{0,40}weight", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate", "fill value"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(3718); torch.set_num_threads(1)
grid = torch.linspace(-1, 1, 32)


class PulseVAE(nn.Module):
    def __init__(self, code=4):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 2 * code))
        self.from_code = nn.Linear(code, 64)
        self.draw = nn.Linear(64, 32)
        nn.init.normal_(self.from_code.weight, std=20)

    def forward(self, x):
        mu, logvar = self.see(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum(1).mean()
        return self.draw(F.gelu(self.from_code(z))), kl


def pulses(n=48):
    at, wide = 1.2 * torch.rand(n, 1) - 0.6, 0.1 + 0.3 * torch.rand(n, 1)
    return torch.exp(-((grid - at) / wide) ** 2) + 0.05 * torch.randn(n, 32)


vae = PulseVAE()
optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3)
handle = rangewatch.attach(vae, optimizer)
for step in range(300):
    x = pulses()
    drawn, kl = vae(x)
    off = F.mse_loss(drawn, x, reduction="none").sum(1).mean()
    loss = 10 * off + kl
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 30 == 0 or step == 299:
        print(step, f"loss {loss.item():.3f} squared error {off.item():.3f} kl {kl.item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
