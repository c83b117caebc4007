"""Orchid or not from colour histograms: hinge loss, functional code (torch.func.functional_call and autograd.grad), gradient scaled to length one by hand ("normalised gradient descent"), SGD step done by the optimizer.
FAULT: as soon as every row of a batch meets its margin the hinge loss is 0 and so is every gradient; g / total_norm is then 0/0 = NaN and the weights are NaN. It happens at step 36.
Without Rangewatch: hinge 1.1 to 0.03 at step 35, 0.0000 with a gradient of length 0 at 36, NaN from 37 on.
Cause: clip (normalisation by hand divides by zero). Step: 36. Right: eps in the denominator, skip a step whose norm is zero, clip_grad_norm_. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "backward_arithmetic"], "step": [36, 38], "place": None, "rank": None,
          "right": r"(?i)norm|clip|divi|eps|zero|0 ?/ ?0", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
from torch.func import functional_call
import rangewatch

torch.manual_seed(12); torch.set_num_threads(1)
palette = torch.randn(2, 30)


def histograms(n):
    kind = torch.randint(0, 2, (n,))
    return torch.softmax(1.1 * palette[kind] + 0.5 * torch.randn(n, 30), 1) * 30, 2.0 * kind - 1


net = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 1))
sgd = torch.optim.SGD(net.parameters(), lr=0.02)
handle = rangewatch.attach(net, sgd)


def hinge(params, x, y):
    score = functional_call(net, params, (x,)).squeeze(1)
    return torch.relu(1 - y * score).mean()


for step in range(220):
    params = dict(net.named_parameters())
    x, y = histograms(24)
    loss = hinge(params, x, y)
    grads = torch.autograd.grad(loss, list(params.values()))
    length = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    for p, g in zip(params.values(), grads):
        p.grad = g / length
    sgd.step()
    handle.log(loss=loss.item())
    if step % 10 == 0 or 33 < step < 39:
        print(f"step {step} hinge {loss.item():.4f} length {length.item():.4f}", flush=True)
handle.detach()
