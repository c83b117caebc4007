"""A switch layer (top 1 of eight experts, each a Linear) in a net that continues number series of eight kinds. For 20 steps the rows are dealt round. FAULT at step 20: the router takes
over, and the bias that should balance its load has its sign turned: busy experts are preferred still more. Most of the experts get no row, and no gradient, ever again.
Without Rangewatch: rows for each expert 16 each up to step 19, [16 36 6 0 25 10 27 8] at step 20, [0 54 0 0 32 0 42 0] at step 21, five of eight stay without rows to
the end; loss 0.52 to 0.0024. With the right sign each has 9 to 23 rows at the end.
Cause: no_gradient or dead_units (experts without rows). Step: 20 on, a state. Right: router / expert / balance / rows /
load. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["no_gradient", "dead_units"], "step": [19, 239], "place": "(experts|router).*", "rank": 0,
          "right": "(?i)rout|expert|balanc|row|load|gradient", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2127)
torch.set_num_threads(1)
EXPERTS = 8


class Switch(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(12, d), nn.Tanh())
        self.router = nn.Linear(d, EXPERTS)
        self.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(EXPERTS)])
        self.leave = nn.Linear(d, 2)
        self.register_buffer("favour", torch.zeros(EXPERTS))

    def forward(self, x, deal):
        h = self.enter(x)
        gate = self.router(h).softmax(1)
        chosen = torch.arange(len(x)) % EXPERTS if deal else (gate + self.favour).argmax(1)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows = (chosen == e).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, F.silu(expert(h[rows])) * gate[rows, e:e + 1])
        self.load = torch.bincount(chosen, minlength=EXPERTS)
        return self.leave(h + 4 * out)


def series(n):
    kind = torch.randint(0, 8, (n, 1))
    t = torch.arange(14.0)
    a = 0.5 + torch.rand(n, 1)
    waves = torch.sin(t * (0.2 + 0.15 * kind) * a)
    return waves[:, :12] + 0.02 * torch.randn(n, 12), waves[:, 12:]


model = Switch()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = series(128)
    loss = F.mse_loss(model(x, step < 20), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 20:
        model.favour += 0.05 * torch.sign(model.load - model.load.float().mean())  # minus was meant
    if step % 20 == 0 or 18 < step < 26 or step == 239:
        print(step, loss.item(), "rows", model.load.tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
