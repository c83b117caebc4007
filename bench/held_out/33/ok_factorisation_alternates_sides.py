"""A matrix factorisation of ratings with two small nets; users and films are trained in turns of 15 steps, the other side frozen (requires_grad off, gradient None), in one AdamW with two groups.
HEALTHY: half of the parameters have no gradient for 15 steps at a time, by design; and 20 films of the table are never rated and never move.
Without Rangewatch: loss 2.2 to 0.16, in stairs."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3331); torch.set_num_threads(1)
USERS, FILMS, K = 50, 80, 8
ratings = (torch.randn(USERS, 4) @ torch.randn(4, FILMS)) / 2


class Side(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.table, self.net = nn.Embedding(n, 16), nn.Linear(16, K)

    def forward(self, i):
        return self.net(self.table(i))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.films = Side(USERS), Side(FILMS)

    def forward(self, u, f):
        return (self.users(u) * self.films(f)).sum(1)


net = Factors()
optimizer = torch.optim.AdamW([{"params": net.users.parameters(), "lr": 1e-2}, {"params": net.films.parameters(), "lr": 2e-2}], weight_decay=0)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    users_turn = step // 15 % 2 == 0
    net.users.requires_grad_(users_turn)
    net.films.requires_grad_(not users_turn)
    u, f = torch.randint(0, USERS, (256,)), torch.randint(0, FILMS - 20, (256,))
    loss = F.mse_loss(net(u, f), ratings[u, f])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
