"""Purely functional training: parameters in a dict, functional_call, own momentum SGD, handle.step() where a step ends, no optimizer.
FAULT at step 100: the learning rate is 200 instead of 0.2 (percent/fraction mix-up). Cause: learning_rate, step 100..103 (result in the
forward of 101). The agent can't know the rate: it is logged as lr. Right: learning rate. Wrong: mask, batch, reloading weights, dtype."""
EXPECT = {"cause": ["learning_rate"], "step": [100, 104], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "tensors of the checkpoint", "GradScaler"], "right": "learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
skeleton = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.Softplus(), nn.Conv2d(8, 16, 3, 2), nn.Softplus(), nn.Flatten(), nn.Linear(64, 10))
params = {n: p for n, p in skeleton.named_parameters()}
velocity = {n: torch.zeros_like(p) for n, p in params.items()}
handle = rangewatch.attach(skeleton)
protos = torch.randn(10, 1, 12, 12)
for it in range(180):
    lr = 0.05 if it < 100 else 50.0
    y = torch.randint(0, 10, (32,))
    out = functional_call(skeleton, params, (protos[y] + torch.randn(32, 1, 12, 12),))
    loss = F.cross_entropy(out, y)
    handle.log(loss=loss.item(), lr=lr)
    grads = torch.autograd.grad(loss, list(params.values()))
    new = {}
    for (n, p), g in zip(params.items(), grads):
        velocity[n] = 0.9 * velocity[n] + g
        new[n] = (p - lr * velocity[n]).detach().requires_grad_(True)
    params = new
    handle.step()
