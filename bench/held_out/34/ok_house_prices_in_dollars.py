"""House prices in dollars, not scaled: a gated MLP gives mean price and three quantiles, squared error plus pinball loss in dollars (Adam). HEALTHY: the loss is in squared dollars (about 1e10), gradients
are huge (up to 1e10 and more), Adam does not mind; the last layer multiplies by 250000 on purpose.
Without Rangewatch: loss 1.4e11 to 3e8..6e8, norm of the gradient 3.5e11 to 1e10."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3434); torch.set_num_threads(1)
q = torch.tensor([0.1, 0.5, 0.9])


def houses(n):
    rooms, area, age = torch.randint(1, 7, (n,)).float(), 60 + 140 * torch.rand(n), 80 * torch.rand(n)
    lake = (torch.rand(n) < 0.1).float()
    price = 40_000 + 1_800 * area + 15_000 * rooms - 900 * age + 220_000 * lake * (1 + area / 200)
    x = torch.stack([(rooms - 3.5) / 1.7, (area - 130) / 40, (age - 40) / 23, lake], 1)
    return x, price * (1 + 0.05 * torch.randn(n))


class Valuer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.lin = nn.Linear(4, 64), nn.Linear(4, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        h = torch.sigmoid(self.gate(x)) * self.lin(x)
        return 250_000 * self.out(torch.tanh(self.mid(h)) + h)


model = Valuer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x, price = houses(64)
    out = model(x)
    diff = price[:, None] - out[:, 1:]
    loss = ((out[:, 0] - price) ** 2).mean() + torch.maximum(q * diff, (q - 1) * diff).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 279:
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt().item()
        print(step, loss.item(), "gradient", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
