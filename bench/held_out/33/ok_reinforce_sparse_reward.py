"""REINFORCE on a treasure hunt with a sparse reward (three right doors in a row, of five doors each): Adam, no baseline. HEALTHY though odd: in the first steps most batches hold no reward at all, so that the loss and all
gradients are exactly 0; later the loss goes UP and down again as the reward comes, and it goes to 0 when all is found.
Without Rangewatch: reward 0 to 1; loss -0.0 for seven steps, 0.1 to 0.2 in between and near 0.001 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3329); torch.set_num_threads(1)
DOORS, ROOMS = 5, 3
right = torch.tensor([3, 0, 4])


class Hunter(nn.Module):
    def __init__(self):
        super().__init__()
        self.room = nn.Embedding(ROOMS, 24)
        self.hidden = nn.Linear(24, 48)
        self.door = nn.Linear(48, DOORS)

    def forward(self, room):
        return self.door(torch.tanh(self.hidden(self.room(room))))


net = Hunter()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
rooms = torch.arange(ROOMS)
for step in range(300):
    dist = torch.distributions.Categorical(logits=net(rooms).expand(48, ROOMS, DOORS))
    action = dist.sample()
    reward = (action == right).all(1).float()
    loss = -(reward * dist.log_prob(action).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 8 or step == 299:
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
