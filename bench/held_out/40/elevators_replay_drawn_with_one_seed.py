"""Offline RL: Q values of a lift controller from a buffer of 20,000 noisy transitions (one step returns), double head, AdamW; the sampler is made anew for every round of 6 updates.
FAULT at step 6: the sampler is made with Generator().manual_seed(0) each round, so that every round draws the same 6 batches of 32: 192 transitions of 20,000 are all that is ever learned.
Without Rangewatch: loss 1.5 to 0.002 at step 186 and 0.01 after (the noise alone is 1.28), held out 2.36 to 3.7.
Cause: data (the same batches over and over). Step: from 6. Right: one generator for the whole run, seed + round. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [6, 399], "place": None, "rank": None, "least": "info",
          "right": r"(?i)seed|generator|shuffl|sampler|same (batch|data|rows|input)|repeat|overfit|memori", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch


class Buffer:
    def __init__(self, n):
        g = torch.Generator().manual_seed(44)
        self.state = torch.randn(n, 10, generator=g)
        self.action = torch.randint(0, 4, (n,), generator=g)
        w = torch.randn(4, 10, generator=g) / 3
        clean = torch.sin((self.state * w[self.action]).sum(1) * 2)
        self.ret = clean + 0.8 * torch.randn(n, generator=g)

    def sampler(self, batches, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        for _ in range(batches):
            i = torch.randint(0, 16_000, (size,), generator=g)
            yield self.state[i], self.action[i], self.ret[i]


class DoubleQ(nn.Module):
    def __init__(self):
        super().__init__()
        def q():
            return nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
        self.q1, self.q2 = q(), q()

    def forward(self, s, a):
        return tuple(q(s).gather(1, a[:, None])[:, 0] for q in (self.q1, self.q2))


torch.manual_seed(45)
torch.set_num_threads(1)
buffer, model = Buffer(20_000), DoubleQ()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for round_ in range(60):
    for s, a, r in buffer.sampler(6, 32):
        one, two = model(s, a)
        loss = nn.functional.mse_loss(one, r) + nn.functional.mse_loss(two, r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        step += 1
    if round_ % 5 == 0:
        with torch.no_grad():
            h = slice(16_000, 20_000)
            one, two = model(buffer.state[h], buffer.action[h])
            held = (nn.functional.mse_loss(one, buffer.ret[h]) + nn.functional.mse_loss(two, buffer.ret[h])).item()
        print(f"round {round_} step {step} loss {loss.item():.4f} held out {held:.4f}", flush=True)
handle.detach()
