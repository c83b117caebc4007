"""Healthy: a transformer of three layers with ReZero (each branch times a gain that begins at 0) sorts numbers. Odd: at step 0 every branch has a gradient of
exactly zero, as the gain shuts it; from step 1 on they all learn. Without Rangewatch: loss 2.96 to 0.04."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1938); torch.set_num_threads(1)
NUMBERS, LENGTH, WIDTH = 16, 6, 40


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 80), nn.GELU(), nn.Linear(80, WIDTH))
        self.gain = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        x = x + self.gain[0] * self.look(x, x, x, need_weights=False)[0]
        return x + self.gain[1] * self.mlp(x)


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.number, self.place = nn.Embedding(NUMBERS, WIDTH), nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))
        self.out = nn.Linear(WIDTH, NUMBERS)

    def forward(self, x):
        return self.out(self.layers(self.number(x) + self.place))


model = Sorter()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randint(0, NUMBERS, (48, LENGTH))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.sort(1)[0].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "gain", model.layers[0].gain.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
