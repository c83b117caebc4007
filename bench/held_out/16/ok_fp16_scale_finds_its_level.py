"""Right: a net in float16 autocast that tells the age of trees from rings. The GradScaler begins at 2 ** 24, the first steps overflow, are skipped and the scale
is halved until it fits; every 40 steps it tries twice as much. Nothing is lost.
Without Rangewatch: the scale falls to 131,072 in 7 steps and rises to 4,194,304; loss 0.32 to 0.0004."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1617); torch.set_num_threads(1)


class Rings(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.age = nn.Linear(64, 1)

    def forward(self, x):
        return self.age(self.see(x))[:, 0]


def trees(n):
    age = torch.rand(n, 1)
    return torch.sin(torch.linspace(0, 6, 50) * (1 + 3 * age)) + 0.1 * torch.randn(n, 50), 2 * age[:, 0] - 1


model = Rings()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=40)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    x, y = trees(64)
    with torch.autocast("cpu", torch.float16):
        age = model(x)
    loss = F.mse_loss(age.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step < 8 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
