"""Snapshot ensembling: SGD with momentum, cosine annealing with warm restarts each 50 steps, from 1e-4 back up to 0.4 in one step, a copy of
the weights kept at the end of each cycle. HEALTHY: at every restart the loss rises and comes down again, as it is meant to."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(14); torch.set_num_threads(1)
proto = torch.randn(12, 40)
model = nn.Sequential(nn.Linear(40, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 12))
sgd = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=50, eta_min=1e-4)
w = rangewatch.attach(model, sgd)
snapshots = []
for step in range(250):
    y = torch.randint(0, 12, (64,))
    x = proto[y] + 1.8 * torch.randn(64, 40)
    loss = nn.functional.cross_entropy(model(x), y)
    sgd.zero_grad(); loss.backward(); sgd.step(); schedule.step()
    w.log(loss=loss.item())
    if step % 50 == 49: snapshots.append(copy.deepcopy(model.state_dict()))
    if step % 10 == 9: print(step, loss.item(), sgd.param_groups[0]["lr"])
print(len(snapshots), "snapshots")
