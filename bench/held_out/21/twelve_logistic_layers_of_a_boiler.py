"""Twelve logistic layers, as in a book of 1990, that predict the state of a boiler (one of four) from sixteen gauges. FAULT at step 0: each sigmoid shrinks
the gradient by a factor of at most 1/4, and the default weights shrink it further; nothing of it reaches the first layers.
Without Rangewatch: loss 1.404 at step 0, 1.36 to 1.45 to the end (ln 4 is 1.386); gradient norm 4e-11 at the first layer, 5e-6 in the middle, 0.05 to 0.6 at the last.
Cause: no_gradient (vanishing), or the weights' initialisation. Step: 0 to the end, a state. Right: vanish / sigmoid / ReLU / residual / normalisation /
initialise. Wrong: GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["no_gradient", "weight"], "step": [0, 219], "place": None, "rank": 0,
          "right": "(?i)vanish|sigmoid|relu|residual|normali|init|gradient", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2109)
torch.set_num_threads(1)
valves = torch.randn(16, 4)


def gauges(n):
    x = torch.randn(n, 16)
    return x, (x @ valves).argmax(1)


sizes = [16] + [64] * 12
layers = [module for a, b in zip(sizes, sizes[1:]) for module in (nn.Linear(a, b), nn.Sigmoid())]
boiler = nn.Sequential(*layers, nn.Linear(64, 4))
optimizer = torch.optim.SGD(boiler.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(boiler, optimizer)
for step in range(220):
    x, y = gauges(64)
    optimizer.zero_grad()
    loss = criterion(boiler(x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "gradient of the first, middle, last layer", *(f"{boiler[i].weight.grad.norm().item():.1e}" for i in (0, 12, 24)), flush=True)
    handle.log(loss=loss.item())
handle.detach()
