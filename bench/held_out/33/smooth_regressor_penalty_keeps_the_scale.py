"""An MLP fits a surface under bfloat16 autocast with a GradScaler; from step 110 on a penalty on the gradient with respect to the input keeps it smooth (weight 1e-3). Adam.
FAULT: the penalty is made of the gradient of the SCALED output (scaler.scale) and never divided by the scale 65536: its square is 4e9 times too large. The penalty is all that is learnt: the net becomes flat.
Without Rangewatch: loss 0.65 to 0.035 at step 109; 2.2e7 at step 110, 207 at the end; the fit's error is back at 0.66 to 1.2.
Cause: loss_scale. Step: 110. Right: scale / unscale / penalty. Wrong: attention mask, labels, NaN in the input."""
EXPECT = {"cause": ["loss_scale"], "step": [109, 116], "place": None, "rank": None,
          "right": "(?i)scale|penalty", "wrong": ["attention mask", "[Ll]abels", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3318); torch.set_num_threads(1)


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(F.softplus(self.mid(torch.sin(2 * self.lift(x))))).squeeze(-1)


net = Surface()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=1000)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x = torch.rand(96, 2) * 2 - 1
    y = 1.4 * torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + x[:, 1]
    x.requires_grad_(step >= 110)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    fit = F.mse_loss(out.float(), y)
    loss = fit
    if step >= 110:
        slope, = torch.autograd.grad(scaler.scale(out.float().sum()), x, create_graph=True)
        loss = fit + 1e-3 * slope.pow(2).sum(1).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 108 < step < 114 or step == 199:
        print(step, loss.item(), "fit", fit.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
