"""Double DQN in a corridor of twelve cells, a reward of 1 only at its end, replay buffer, target network copied each 40 updates. HEALTHY: for dozens of updates
almost every reward is 0; then they come more often. The loss goes up and down a hundredfold and jumps at each copy of the target."""
EXPECT = {"healthy": True}
import collections
import copy
import random
import torch
from torch import nn
import rangewatch

random.seed(5); torch.manual_seed(5); torch.set_num_threads(1)
CELLS = 12

def one_hot(cells):
    return nn.functional.one_hot(torch.as_tensor(cells), CELLS).float()

class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CELLS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, 2)
    def forward(self, s):
        h = self.body(s)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)

online = Q()
target = copy.deepcopy(online).requires_grad_(False)
opt = torch.optim.Adam(online.parameters(), 1e-3)
watch = rangewatch.attach(online, opt)
memory = collections.deque(maxlen=2000)
cell, wins = 0, 0
for update in range(240):
    for _ in range(8):
        greedy = random.random() > max(0.1, 1 - update / 200)
        with torch.no_grad():
            action = int(online(one_hot([cell])).argmax()) if greedy else random.randrange(2)
        new = max(0, cell + (1 if action else -1))
        done = new == CELLS - 1
        memory.append((cell, action, float(done), new, float(done)))
        wins += done
        cell = 0 if done or random.random() < 0.02 else new
    s, a, r, n, d = zip(*random.sample(memory, min(len(memory), 64)))
    r, d, a = torch.tensor(r), torch.tensor(d), torch.tensor(a)
    with torch.no_grad():
        best = online(one_hot(n)).argmax(1, keepdim=True)
        goal = r + 0.97 * (1 - d) * target(one_hot(n)).gather(1, best).squeeze(1)
    loss = nn.functional.smooth_l1_loss(online(one_hot(s)).gather(1, a[:, None]).squeeze(1), goal)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    opt.step()
    if update % 40 == 39:
        target.load_state_dict(online.state_dict())
    watch.log(loss=loss.item())
    if update % 20 == 0: print(update, f"{loss.item():.2e}", "wins", wins)
