"""A graph net over molecules-like rings that predicts an energy. FAULT from step 0 on: the message passing returns `.data` (a trace of a memory saving try), so
the loss of the readout never reaches the rounds; they stay as they were initialised, though the optimizer holds them and they are meant to learn.
Without Rangewatch: the rounds have no gradient at all; loss 1.04 to 0.24 at the end, 0.11 with the gradient.
Cause: no_gradient. Step: from 0 on, a state. Place: rounds. Right: detach / no grad / gradient does not reach. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 199], "place": "(atom|rounds).*", "rank": 0,
          "right": "(?i)detach|no_grad|grad", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2404); torch.set_num_threads(1)
N = 12
ring = torch.eye(N).roll(1, 0) + torch.eye(N).roll(-1, 0)


class Round(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.send, self.keep = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, h, edges):
        return torch.tanh(self.keep(h) + edges @ self.send(h))


class EnergyNet(nn.Module):
    def __init__(self, c=40):
        super().__init__()
        self.atom = nn.Embedding(6, c)
        self.rounds = nn.ModuleList(Round(c) for _ in range(3))
        self.readout = nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, 1))

    def embed(self, kinds, edges):
        h = self.atom(kinds)
        for r in self.rounds:
            h = r(h, edges)
        return h.sum(1).data

    def forward(self, kinds, edges):
        return self.readout(self.embed(kinds, edges))[:, 0]


pair = torch.randn(6, 6)


def rings(n):
    kinds = torch.randint(0, 6, (n, N))
    edges = ring.expand(n, N, N).clone()
    return kinds, edges, pair[kinds, kinds.roll(1, 1)].sum(1) / N ** 0.5


model = EnergyNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    kinds, edges, energy = rings(64)
    loss = F.smooth_l1_loss(model(kinds, edges), energy)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "gradient of the rounds", model.rounds[0].send.weight.grad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
