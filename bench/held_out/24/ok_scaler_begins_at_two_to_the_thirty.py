"""A residual MLP that predicts tides of a lagoon in float16 autocast. HEALTHY: the GradScaler begins at 2**30 on purpose, skips the first steps (the loss is sound) and finds its
scale by halving; then it doubles every 40 steps and now and then skips one again.
Without Rangewatch: loss 0.65 to 0.17, the scale settles at 262,144 to 524,288."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2441); torch.set_num_threads(1)


class Res(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.a, self.b = nn.Linear(w, w), nn.Linear(w, w)

    def forward(self, h):
        return h + self.b(F.silu(self.a(h)))


net = nn.Sequential(nn.Linear(24, 80), Res(80), Res(80), nn.Linear(80, 4))
mix = torch.randn(24, 4) / 5
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=40)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(220):
    x = torch.randn(64, 24)
    y = torch.sin(x @ mix * 1.5)
    with torch.autocast("cpu", torch.float16):
        out = net(x)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
