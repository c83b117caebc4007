"""Low-rank adapters (B = 0 at the start) and a new head on a trunk of random features that is frozen on purpose; Adam on the adapters alone.
HEALTHY: most weights never move and have no gradient, A's gradient is exactly zero in the first step because B is zero, and all of it is meant.
Without Rangewatch: loss 1.10 to 0.09, 98 % right, |B| from 0 to 2."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3722); torch.set_num_threads(1)


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


trunk = nn.Sequential(Adapted(nn.Linear(16, 64)), nn.Tanh(), Adapted(nn.Linear(64, 64)), nn.Tanh())
model = nn.Sequential(trunk, nn.Linear(64, 3))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
handle = rangewatch.attach(model, optimizer)
planes = torch.randn(16, 3)
print("moving", sum(p.numel() for p in model.parameters() if p.requires_grad), "of", sum(p.numel() for p in model.parameters()), flush=True)
assert not trunk[0].base.weight.requires_grad
for step in range(260):
    x = torch.randn(64, 16)
    y = (x @ planes + 0.6 * (x[:, :3] * x[:, 3:6])).argmax(1)
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, f"loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f} |B| {trunk[0].B.norm().item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
