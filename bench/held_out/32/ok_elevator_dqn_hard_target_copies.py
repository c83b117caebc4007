"""Double DQN on a toy elevator (go to the floor that is called, then open), RMSprop, Huber loss, hard copies of the target net every 25 steps, epsilon-greedy.
HEALTHY: the loss doubles at each copy of the target as the targets move, and grows over the run as the values do; the clip at norm 0.05 is active on most steps; the target net never gets a gradient.
Without Rangewatch: loss 0.030, 0.009 at step 80, 0.04 to 0.05 at the end; served per move 0.01 to 0.33 (the best is 0.38)."""
EXPECT = {"healthy": True}
import copy
import random
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(422); random.seed(422); torch.set_num_threads(1)
FLOORS = 5


def observe(at, call):
    return torch.cat([F.one_hot(at, FLOORS), F.one_hot(call, FLOORS)], 1).float()


q = nn.Sequential(nn.Linear(2 * FLOORS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
target = copy.deepcopy(q).requires_grad_(False)
optimizer = torch.optim.RMSprop(q.parameters(), lr=2e-3, alpha=0.95)
memory = []
at, call = torch.randint(0, FLOORS, (16,)), torch.randint(0, FLOORS, (16,))


def play(epsilon):
    global at, call
    s = observe(at, call)
    with torch.no_grad():
        a = q(s).argmax(1)
    a = torch.where(torch.rand(16) < epsilon, torch.randint(0, 3, (16,)), a)
    served = (a == 2) & (at == call)
    r = torch.where(served, 1.0, -0.05)
    nat = torch.where(a == 2, at, (at + 2 * a - 1).clamp(0, FLOORS - 1))
    ncall = torch.where(served, torch.randint(0, FLOORS, (16,)), call)
    memory.extend(zip(s, a, r, observe(nat, ncall)))
    del memory[:-3000]
    at, call = nat, ncall
    return served.float().mean().item()


for _ in range(10):
    play(1.0)
handle = rangewatch.attach(q, optimizer)
rate = 0.0
for step in range(300):
    rate = 0.95 * rate + 0.05 * play(max(0.1, 1 - step / 150))
    s, a, r, s2 = (torch.stack(t) for t in zip(*random.sample(memory, 64)))
    with torch.no_grad():
        goal = r + 0.9 * target(s2).gather(1, q(s2).argmax(1, keepdim=True)).squeeze(1)
    loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 0.05)
    optimizer.step()
    if step % 25 == 24:
        target.load_state_dict(q.state_dict())
    if step % 20 == 0 or step == 299:
        print(step, loss.item(), "served per move", round(rate, 3), flush=True)
    handle.log(loss=loss.item())
handle.detach()
