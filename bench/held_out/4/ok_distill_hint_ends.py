"""Distillation by FitNets: for 100 steps a hint loss joins a middle layer through a regressor, after it only the softened logits count; the regressor is taken out of the
optimizer with its group then. The teacher is frozen, in eval mode, T = 4 and the loss times 16. HEALTHY: the loss changes its size at step
100. Without Rangewatch: 0.92 to 0.24 at step 99, 0.056 at step 100, then to 0.03."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(149); torch.set_num_threads(1)


def net(d):
    return nn.ModuleDict({"low": nn.Sequential(nn.Linear(16, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU()), "high": nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 10))})


teacher = net(128)
with torch.no_grad():
    for p in teacher.parameters():
        p.mul_(2.0)
teacher.eval().requires_grad_(False)
student = net(32)
student["regressor"] = nn.Linear(32, 128)
optimizer = torch.optim.Adam([{"params": [*student["low"].parameters(), *student["high"].parameters()]}, {"params": student["regressor"].parameters()}], lr=2e-3)
watch = rangewatch.attach(student, optimizer)
for step in range(200):
    if step == 100:
        del optimizer.param_groups[1]
        student["regressor"].requires_grad_(False)
    x = torch.randn(64, 16)
    with torch.no_grad():
        hint = teacher["low"](x)
        soft = (teacher["high"](hint) / 4).softmax(1)
    middle = student["low"](x)
    loss = 16 * F.kl_div((student["high"](middle) / 4).log_softmax(1), soft, reduction="batchmean")
    if step < 100:
        loss = loss + F.mse_loss(student["regressor"](middle), hint)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or 98 <= step < 102 or step == 199:
        print(step, round(loss.item(), 4))
