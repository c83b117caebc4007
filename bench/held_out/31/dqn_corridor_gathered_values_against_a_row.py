"""DQN on a corridor of 12 cells with a prize at a cell that the observation names: batches from a table of all moves, a target net copied every 20 steps (Adam).
FAULT from step 0: `q.gather(1, a)` is [64, 1], the targets are [64]; the difference broadcasts to [64, 64] and each value is drawn to the mean of all targets.
Without Rangewatch: loss 0.09 to 0.02 to 0.06, right moves 0.5 to the end (0.9 with the shapes right).
Cause: forward_arithmetic (wrong broadcasting in the loss). Step: 0. Right: shape / broadcast / squeeze. Wrong: mask, GradScaler, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [-1, 5], "place": None, "rank": None,
          "right": "(?i)broadcast|shape|squeeze|view|unsqueeze|\\[64", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(112); torch.set_num_threads(1)
N, GAMMA = 12, 0.8


class Duel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * N, 64), nn.ReLU())
        self.value, self.gain = nn.Linear(64, 1), nn.Linear(64, 2)

    def forward(self, s):
        h = self.body(s)
        g = self.gain(h)
        return self.value(h) + g - g.mean(1, keepdim=True)


def see(cell, prize):
    return torch.cat([F.one_hot(cell, N), F.one_hot(prize, N)], 1).float()


net = Duel()
target = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
cells, prizes = torch.cartesian_prod(torch.arange(N), torch.arange(N)).T
for step in range(300):
    cell, prize, a = (torch.randint(0, k, (64,)) for k in (N, N, 2))
    new = (cell + 2 * a - 1).clamp(0, N - 1)
    r, done = (new == prize).float(), (new == prize).float()
    with torch.no_grad():
        aim = r + GAMMA * (1 - done) * target(see(new, prize)).max(1).values
    q = net(see(cell, prize)).gather(1, a[:, None])
    loss = ((q - aim) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        target.load_state_dict(net.state_dict())
        with torch.no_grad():
            good = (net(see(cells, prizes)).argmax(1) == (prizes > cells))[cells != prizes].float().mean()
        print(step, loss.item(), "right moves", good.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
