"""A factorisation machine predicts how many stars a viewer gives a film (Adamax). FAULT at step 0: the model's last part, `stars`, rounds to whole stars (`torch.round`), also in training; the derivative of round is exactly 0, so every gradient of every parameter is exactly 0.
Without Rangewatch: mse 2.05 to 2.2 from step 0 to 259 and the sum of all |gradients| is exactly 0.0 in every step (without the rounding: 0.46 at step 104).
Cause: backward_arithmetic / frozen (round has no gradient), or the loss that is taken of rounded values. Step: from 0. Right: round cuts the gradient, train on the raw score. Wrong: lower the learning rate, GradScaler, bad checkpoint."""
EXPECT = {"cause": ["backward_arithmetic", "frozen", "loss", "dead_units"], "step": [0, 150], "place": None, "rank": None,
          "right": "(?i)round|gradient|differentiab|detach|graph", "wrong": ["[Ll]ower the learning rate", "GradScaler", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5109)
torch.set_num_threads(1)
VIEWERS, FILMS = 150, 90
taste, kind = torch.randn(VIEWERS, 3), torch.randn(FILMS, 3)


def ratings(n):
    v, f = torch.randint(0, VIEWERS, (n,)), torch.randint(0, FILMS, (n,))
    return v, f, (3 + (taste[v] * kind[f]).sum(1) + 0.2 * torch.randn(n)).round().clamp(1, 5)


class WholeStars(nn.Module):
    def forward(self, score):
        return score.round()


class Films(nn.Module):
    def __init__(self, k=12):
        super().__init__()
        self.viewer, self.film = nn.Embedding(VIEWERS, k), nn.Embedding(FILMS, k)
        self.viewer_bias, self.film_bias = nn.Embedding(VIEWERS, 1), nn.Embedding(FILMS, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))
        self.stars = WholeStars()
        for table in (self.viewer, self.film, self.viewer_bias, self.film_bias):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, v, f):
        both = (self.viewer(v) * self.film(f)).sum(1)
        return self.stars(self.mean + self.viewer_bias(v)[:, 0] + self.film_bias(f)[:, 0] + both)


films = Films()
opt = torch.optim.Adamax(films.parameters(), lr=0.03)
handle = rangewatch.attach(films, opt)
for step in range(260):
    v, f, y = ratings(512)
    loss = (films(v, f) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    size = sum(p.grad.abs().sum().item() for p in films.parameters())
    opt.step()
    handle.log(loss=loss.item())
    if step % 26 == 0 or step == 259:
        print(f"step {step}: mse {loss.item():.4f}, sum of all |gradients| {size}", flush=True)
handle.detach()
