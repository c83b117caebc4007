"""A VAE under fp16 autocast whose GradScaler begins at 2 ** 22 and doubles every 25 good steps. HEALTHY: the first steps overflow and are skipped, the scale is
halved until it fits, and now and then a doubling costs one skipped step.
Without Rangewatch: loss 16.8 to 2.8; the scale 4.2e6 to 65536 at step 20, between 65536 and 262144 from there."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2922); torch.set_num_threads(1)
basis = torch.randn(3, 30)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(30, 80), nn.SiLU(), nn.Linear(80, 12))
        self.dec = nn.Sequential(nn.Linear(6, 80), nn.SiLU(), nn.Linear(80, 30))

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z).float(), mu, logvar


net = VAE()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=25)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(240):
    x = torch.tanh(torch.randn(96, 3) @ basis) + 0.1 * torch.randn(96, 30)
    with torch.autocast("cpu", dtype=torch.float16):
        back, mu, logvar = net(x)
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
    loss = F.mse_loss(back, x) * 30 + 0.2 * kl
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "kl", kl.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
