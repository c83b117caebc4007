"""Film ratings from user and item vectors (two-tower recommender with biases), Adagrad, squared error.
FAULT at step 0: the model gives shape (batch, 1), the ratings have shape (batch,); their difference is a batch x batch table, so each prediction is drawn to the mean rating.
Without Rangewatch: loss 10.5, then 1.25 to 1.5 (the variance of the ratings) to the end; the spread of the predictions shrinks from 0.42 at step 20 to 0.05 (with equal shapes it stays at 0.5, loss lower by 0.1 to 0.4).
Cause: forward_arithmetic (shape of the loss). Step: from 0. Right: squeeze the prediction / same shapes. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)shape|broadcast|squeeze|unsqueeze|view", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(8); torch.set_num_threads(1)
USERS, FILMS, RANK = 120, 90, 6
taste, kind = torch.randn(USERS, RANK), torch.randn(FILMS, RANK)
harshness = 0.5 * torch.randn(USERS)


def draw_ratings(n):
    u, f = torch.randint(0, USERS, (n,)), torch.randint(0, FILMS, (n,))
    stars = 3 + harshness[u] + 0.5 * (taste[u] * kind[f]).sum(1)
    return u, f, (stars + 0.2 * torch.randn(n)).clamp(0.5, 5)


class TwoTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.user_emb, self.film_emb = nn.Embedding(USERS, dim), nn.Embedding(FILMS, dim)
        self.user_tower = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.film_tower = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.score = nn.Linear(dim, 1)

    def forward(self, u, f):
        return self.score(self.user_tower(self.user_emb(u)) * self.film_tower(self.film_emb(f)))


recommender = TwoTower()
adagrad = torch.optim.Adagrad(recommender.parameters(), lr=0.05)
handle = rangewatch.attach(recommender, adagrad)
for batch_no in range(200):
    users, films, stars = draw_ratings(128)
    predicted = recommender(users, films)
    loss = ((predicted - stars) ** 2).mean()
    adagrad.zero_grad()
    loss.backward()
    adagrad.step()
    if batch_no % 20 == 0 or batch_no == 199:
        print(f"batch {batch_no} loss {loss.item():.4f} spread of predictions {predicted.std().item():.3f} of ratings {stars.std().item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
