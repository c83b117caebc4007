"""A factorisation machine with a deep part that rates films. FAULT from step 0 on: the second layer of the deep part is initialised with a standard deviation of 150 where 0.15 was
meant; the first outputs are in the tens and more, and the loss begins at thousands and never comes to the level of the guess of a constant.
Without Rangewatch: loss 2,173 at step 0, 580 at step 3, 6.2 at the end, above the 1.3 of a constant; with 0.15 it is 0.86.
Cause: weight (the initialisation). Step: from 0 on, a state. Place: deep. Right: initialisation / weight. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 199], "place": "deep.*", "rank": 0,
          "right": "(?i)initiali|weight|scale", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2423); torch.set_num_threads(1)
USERS, FILMS = 80, 60
taste, tone = torch.randn(USERS, 4), torch.randn(FILMS, 4)


class DeepFM(nn.Module):
    def __init__(self, k=16):
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, k), nn.Embedding(FILMS, k)
        self.deep = nn.Sequential(nn.Linear(2 * k, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        for e in (self.user, self.film):
            nn.init.normal_(e.weight, std=0.3)
        nn.init.normal_(self.deep[2].weight, std=150.0)

    def forward(self, u, f):
        a, b = self.user(u), self.film(f)
        return (a * b).sum(1) + self.deep(torch.cat((a, b), 1))[:, 0]


model = DeepFM()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    u, f = torch.randint(0, USERS, (128,)), torch.randint(0, FILMS, (128,))
    rating = 3 + 0.7 * (taste[u] * tone[f]).sum(1)
    loss = (model(u, f) - rating).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 4 or step == 199:
        print(step, loss.item(), "of a constant", rating.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
