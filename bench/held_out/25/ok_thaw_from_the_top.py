"""A conv net for textures whose stages are thawed one after the other: only the head learns at first, stage two joins at step 50, stage one at step 100, each
with a group of its own and a lower rate. HEALTHY: frozen layers have no gradient, and then they have.
Without Rangewatch: loss 1.62 to 1.43 at step 40, 0.70 at step 80, 0.27 at step 100, 0.020 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2537); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")


class Textures(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(16, 48, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(48 * 16, 5)

    def forward(self, x):
        return self.head(self.two(self.one(x)).flatten(1))


net = Textures()
for p in (*net.one.parameters(), *net.two.parameters()):
    p.requires_grad_(False)
optimizer = torch.optim.Adam(net.head.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    for at, stage, rate in ((50, net.two, 1e-3), (100, net.one, 5e-4)):
        if step == at:
            for p in stage.parameters():
                p.requires_grad_(True)
            optimizer.add_param_group({"params": list(stage.parameters()), "lr": rate})
    y = torch.randint(0, 5, (48,))
    turn = (y * 0.6).view(-1, 1, 1)
    x = torch.sin(1.3 * (xx * turn.cos() + yy * turn.sin()) + 6.28 * torch.rand(48, 1, 1)) + 0.7 * torch.randn(48, 16, 16)
    loss = nn.functional.cross_entropy(net(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
