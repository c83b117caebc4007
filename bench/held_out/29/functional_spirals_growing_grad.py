"""Two spirals told apart by functional code without modules (einsum and a dictionary of parameters). FAULT from the start: nobody calls zero_grad: each
gradient is the sum of all before, SGD swings without damping and ever wider.
Without Rangewatch: loss 0.80, 0.62 to 1.85 by step 20, 8 at step 40, 10 to 33 from step 100; the gradient grows from 1.2 to 35. With zero_grad
the loss falls to 0.37 to 0.6.
Cause: optimizer, backward_arithmetic (gradients accumulate) or learning_rate. Step: any. Right: zero_grad / accumulat. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["optimizer", "backward_arithmetic"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)zero_grad|accumulat|set_to_none", "wrong": ["GradScaler", "attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2915); torch.set_num_threads(1)


def spirals(n):
    y = torch.randint(0, 2, (n,))
    r = 0.2 + torch.rand(n)
    a = 7 * r + 3.1416 * y
    return torch.stack((r * a.cos(), r * a.sin()), 1) + 0.1 * torch.randn(n, 2), y


def init(*sizes):
    params = {}
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        params[f"w{i}"] = nn.Parameter(torch.randn(a, b) * (2 / a) ** 0.5)
        params[f"b{i}"] = nn.Parameter(torch.zeros(b))
    return nn.ParameterDict(params)


def apply(params, x):
    n = len(params) // 2
    for i in range(n):
        x = torch.einsum("ni,ij->nj", x, params[f"w{i}"]) + params[f"b{i}"]
        x = torch.tanh(x) if i < n - 1 else x
    return x


params = init(2, 48, 48, 2)
optimizer = torch.optim.SGD(params.parameters(), lr=0.5)
handle = rangewatch.attach(params, optimizer)
for step in range(220):
    x, y = spirals(128)
    loss = F.cross_entropy(apply(params, x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "size of the gradient", sum(p.grad.norm() ** 2 for p in params.values()).sqrt().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
