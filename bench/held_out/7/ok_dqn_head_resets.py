"""A double DQN on a ring of states whose last layer is drawn anew every 90 steps (against the primacy bias) with its Adam state, and whose target
net is copied every 15: the loss leaps on purpose and comes back, it grows at first because the targets do. HEALTHY.
Without Rangewatch: loss 0.037, 0.013 at step 80, 0.029 at step 90, 0.114 at step 180, 0.007 at the end; mean value 0.14 to 1.55, with the falls to
0.10 and -0.17."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(727); torch.set_num_threads(1)
STATES, GAMMA = 16, 0.9
feature = torch.randn(STATES, 12)
prize = torch.zeros(STATES).index_fill_(0, torch.tensor([3]), 1.0)


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, s):
        return self.head(self.torso(feature[s]))


model = Q()
target = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    if step in (90, 180):
        model.head.reset_parameters()
        for p in model.head.parameters():
            optimizer.state.pop(p, None)
    if step % 15 == 0:
        target.load_state_dict(model.state_dict())
    s, a = torch.randint(0, STATES, (64,)), torch.randint(0, 2, (64,))
    s2 = (s + 2 * a - 1) % STATES
    with torch.no_grad():
        y = prize[s2] + GAMMA * target(s2).gather(1, model(s2).argmax(1, keepdim=True)).squeeze(1)
    loss = F.smooth_l1_loss(model(s).gather(1, a[:, None]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    if step % 20 == 0 or step in (90, 91, 180, 181, 299):
        with torch.no_grad():
            print(step, loss.item(), "value", model(torch.arange(STATES)).max(1).values.mean().item(), flush=True)
handle.detach()
