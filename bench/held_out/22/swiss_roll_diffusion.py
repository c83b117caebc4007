"""A diffusion model in two dimensions (noise on a spiral, a net guesses the noise). The rate is to be 1e-3 with a warm-up in a LambdaLR. FAULT at step 0: the lambda returns
the rate itself (up to 1e-3) and no factor, and LambdaLR multiplies the rate of the optimizer with it: 1e-6 at most.
Without Rangewatch: loss 1.5 to 1.9 from first to last, the rate is 1e-6 (with a factor: 0.39).
Causes: learning_rate. Right: the lambda is to return a factor / the rate is far too low. Wrong: lower the rate, GradScaler, attention mask, clip."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 219], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|lambda|schedul", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2232); torch.set_num_threads(1)
alpha = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 60), 0)


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.when = nn.Embedding(60, 32)
        self.where = nn.Linear(2, 96)
        self.film = nn.ModuleList(nn.Linear(32, 192) for _ in range(2))
        self.body = nn.ModuleList(nn.Linear(96, 96) for _ in range(2))
        self.out = nn.Linear(96, 2)

    def forward(self, x, t):
        h, e = self.where(x), self.when(t)
        for film, body in zip(self.film, self.body, strict=True):
            a, b = film(e).chunk(2, 1)
            h = h + nn.functional.silu(body(h) * (1 + a) + b)
        return self.out(h)


model = Noise()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1e-3 * min(1.0, (s + 1) / 20))
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    turn = 3 + 9 * torch.rand(256, 1)
    x0 = turn * torch.cat((turn.cos(), turn.sin()), 1) / 7
    t, eps = torch.randint(0, 60, (256,)), torch.randn(256, 2)
    a = alpha[t, None]
    loss = (model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t) - eps).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
