"""LoRA on a frozen MLP that was trained for another task: B begins at zero, so A gets no gradient at the first step, and the frozen weights never any. HEALTHY.
Without Rangewatch: loss 0.457 to 0.03 to 0.07."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6147); torch.set_num_threads(1)


class LoRA(nn.Module):
    def __init__(self, base, r=6):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / r)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


def task(x, turn):
    return torch.sin(2 * x[:, :1] + turn) + x[:, 1:2] * torch.cos(x[:, 2:3] + turn)


old = nn.Sequential(nn.Linear(5, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
before = torch.optim.Adam(old.parameters(), lr=3e-3)
for _ in range(300):
    x = torch.randn(128, 5)
    before.zero_grad()
    F.mse_loss(old(x), task(x, 0.0)).backward()
    before.step()
net = nn.Sequential(*[LoRA(m) if isinstance(m, nn.Linear) else m for m in old])
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=5e-3, weight_decay=0)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x = torch.randn(96, 5)
    loss = F.mse_loss(net(x), task(x, 0.8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
