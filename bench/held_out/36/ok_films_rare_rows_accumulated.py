"""Matrix factorisation of film ratings with biases; Zipf popularity, so most films' rows get no gradient in most steps; gradients are summed over 4 micro-batches before each Adagrad step (loss / 4), by design.
HEALTHY: most rows of the tables have a zero gradient and do not move; zero_grad comes only at every fourth backward; the loss levels off at the noise of the ratings (about 0.25).
Without Rangewatch: mse 1.64 at step 0, 0.27 to 0.30 from step 240 on."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(44)
torch.set_num_threads(1)
USERS, FILMS, K, ACCUM = 300, 500, 6, 4
taste, style = torch.randn(USERS, 3), torch.randn(FILMS, 3)
popularity = 1.0 / torch.arange(1, FILMS + 1).float() ** 1.1


def ratings(n):
    u, f = torch.randint(0, USERS, (n,)), torch.multinomial(popularity, n, replacement=True)
    return u, f, 0.5 * (taste[u] * style[f]).sum(1) + 0.4 * style[f, 0] + 0.5 * torch.randn(n)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, K), nn.Embedding(FILMS, K)
        self.film_bias = nn.Embedding(FILMS, 1)
        nn.init.normal_(self.user.weight, std=0.3), nn.init.normal_(self.film.weight, std=0.3), nn.init.zeros_(self.film_bias.weight)

    def forward(self, u, f):
        return (self.user(u) * self.film(f)).sum(1) + self.film_bias(f).squeeze(1)


factors = Factors()
optimizer = torch.optim.Adagrad(factors.parameters(), lr=0.15)
handle = rangewatch.attach(factors, optimizer)
for step in range(300):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(ACCUM):
        u, f, stars = ratings(128)
        loss = (factors(u, f) - stars).pow(2).mean() / ACCUM
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        print(f"step {step} mse {total:.4f}", flush=True)
    handle.log(loss=total)
handle.detach()
