"""MAML on sines: a few inner steps on a task's support points, then the query loss of the adapted net should reach the meta-parameters. FAULT from
step 0 on: the inner step is written through .data on a copy, which cuts the graph: backward fills the copy's gradients, the meta-parameters' stay
None, and the outer Adam has nothing to step with. The query loss never gets better.
Without Rangewatch: all six meta-parameters have grad None at every step, the weights are the same to the last bit, the query loss stays 1.2 to 6.
Report: KanishJebaMathewM/Truxify#13118 (inner loop param.data detaches the graph), facebookresearch/higher#102, katerakelly/pytorch-maml#18.
Cause: no_gradient (or optimizer). Step: 0. Right: gradient / graph / detach / .data / None. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "optimizer"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "gradient|graph|detach|\\.data|None|backward|not (move|change|train|learn)|frozen|optimizer"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(721); torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.net(x)


def task():
    amplitude, phase = 0.5 + 4 * torch.rand(1), 3.14 * torch.rand(1)
    x = 10 * torch.rand(20, 1) - 5
    y = amplitude * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


def adapt(model, x, y, rate=0.01):
    adapted = copy.deepcopy(model)
    for _ in range(2):
        grads = torch.autograd.grad(F.mse_loss(adapted(x), y), list(adapted.parameters()), create_graph=True)
        for p, g in zip(adapted.parameters(), grads):
            p.data -= rate * g.data  # cuts the way back to the meta-parameters
    return adapted


model = Sine()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = 0.0
    for _ in range(4):
        xs, ys, xq, yq = task()
        loss = loss + F.mse_loss(adapt(model, xs, ys)(xq), yq) / 4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), sum(p.grad is None for p in model.parameters()), model.net[0].weight.sum().item(), flush=True)
handle.detach()
