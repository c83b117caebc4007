"""Fitted Q values of a maze, with a target net and discounted rewards. FAULT from the start: AdamW has a weight decay of 100 (meant was 1e-2 and a percent
sign was lost twice); with the rate 0.002 a fifth of each weight goes at each step.
Without Rangewatch: loss 0.33 to 1.07, 0.58 at the end; the value beside the goal is 0.010 where 5 is true; the sum of the norms falls from 11.9 to
0.58 at step 20 and 0.12 at step 60. With a decay of 0.01: loss 0.009, value 4.69.
Cause: regularization (or optimizer, or the weights that vanish). Step: any. Right: weight decay. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["regularization", "optimizer", "weight"], "step": [0, 200], "place": None, "rank": 0,
          "right": "(?i)decay|regulari", "wrong": ["GradScaler", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2526); torch.set_num_threads(1)
SIZE = 6
moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


def walk(n):
    here, action = torch.randint(0, SIZE, (n, 2)), torch.randint(0, 4, (n,))
    there = (here + moves[action]).clamp(0, SIZE - 1)
    goal = (there == SIZE - 1).all(1).float()
    return here, action, there, goal


def see(cell):
    return torch.cat((F.one_hot(cell[:, 0], SIZE), F.one_hot(cell[:, 1], SIZE)), 1).float()


q = nn.Sequential(nn.Linear(2 * SIZE, 96), nn.Mish(), nn.Linear(96, 96), nn.Mish(), nn.Linear(96, 4))
target = copy.deepcopy(q)
optimizer = torch.optim.AdamW(q.parameters(), lr=2e-3, weight_decay=100.0)
handle = rangewatch.attach(q, optimizer)
for step in range(200):
    if step % 10 == 0:
        target.load_state_dict(q.state_dict())
    here, action, there, goal = walk(256)
    with torch.no_grad():
        aim = 5 * goal + 0.9 * (1 - goal) * target(see(there)).amax(1)
    loss = F.mse_loss(q(see(here)).gather(1, action[:, None])[:, 0], aim)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        corner = q(see(torch.tensor([[SIZE - 1, SIZE - 2]]))).max().item()
        print(step, loss.item(), "value beside the goal (true: 5)", corner, "norm", sum(p.norm() for p in q.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
