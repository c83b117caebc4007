"""HEALTHY: triplet margin loss that reaches exactly 0 in most batches once it has converged: gradients exactly zero for hundreds of steps; 400."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))
opt = torch.optim.Adam(net.parameters(), 3e-3)
criterion = nn.TripletMarginLoss(margin=0.5)
watch = rangewatch.attach(net, opt)
protos = 2 * torch.randn(10, 20)
for step in range(400):
    y = torch.randint(0, 10, (32,))
    n = (y + torch.randint(1, 10, (32,))) % 10
    a, p, ng = (protos[k] + 0.3 * torch.randn(32, 20) for k in (y, y, n))
    loss = criterion(net(a), net(p), net(ng))
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
