"""An MLP for the level of a river, SGD with warm restarts every 50 steps: the rate jumps from near 0 to 0.2. HEALTHY: the loss jumps a little at each restart, as is meant.
Without Rangewatch: loss 0.93 to 0.012; 0.127 at step 50, 0.175 at 51."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(6142); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.8)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, eta_min=1e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    x = torch.randn(64, 8)
    y = torch.sin(x[:, :1] + x[:, 1:2]) + 0.5 * x[:, 2:3].abs() + 0.05 * torch.randn(64, 1)
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step in (49, 51, 249):
        print(step, loss.item(), "lr", schedule.get_last_lr()[0], flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
