"""A field of sines that learns one picture by its coordinates; the rate falls along a cosine over 150 steps. FAULT at step 130: the job is resumed, weights
and Adam's state are loaded, but the schedule starts over at its peak, 0.006 instead of 0.0003, without the warm-up of the first day.
Without Rangewatch: loss 0.31 to 1.9e-4 at step 129, 2.1e-4 at step 130, 2.9e-4 at step 133, 3.3e-4 at step 135, 4.2e-4 at step 180, 2.7e-4 at the
end: a quiet fault, 70 steps that win nothing.
Cause: learning_rate. Step: 130 and after. Right: learning rate / schedule. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [129, 199], "least": "info", "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import io
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(2522); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
place = torch.stack((yy, xx), 2).flatten(0, 1)
picture = (torch.sin(6 * xx + 3 * yy) * torch.cos(5 * yy) + 0.5 * torch.tanh(4 * (xx * yy))).flatten()


class Sine(nn.Module):
    def __init__(self, n_in, n_out, first=False):
        super().__init__()
        self.line = nn.Linear(n_in, n_out)
        bound = 1 / n_in if first else (6 / n_in) ** 0.5 / 12
        nn.init.uniform_(self.line.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(12 * self.line(x))


field = nn.Sequential(Sine(2, 64, True), Sine(64, 64), Sine(64, 64), nn.Linear(64, 1))
optimizer = torch.optim.Adam(field.parameters(), lr=0.006)
handle = rangewatch.attach(field, optimizer)
day = 0
for step in range(200):
    if step == 130:
        paper = io.BytesIO()
        torch.save((field.state_dict(), optimizer.state_dict()), paper)
        paper.seek(0)
        weights, state = torch.load(paper)
        field.load_state_dict(weights)
        optimizer.load_state_dict(state)
        day = 130
    k = step - day
    warm = min(1.0, (k + 1) / 15) if day == 0 else 1.0
    optimizer.param_groups[0]["lr"] = 0.006 * warm * 0.5 * (1 + math.cos(math.pi * k / 150))
    some = torch.randint(0, 1024, (384,))
    loss = ((field(place[some])[:, 0] - picture[some] - 0.01 * torch.randn(384)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 127 < step < 137 or step == 199:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
