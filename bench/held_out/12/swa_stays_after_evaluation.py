"""Forecasts of tides by a GRU, RAdam at a small rate, and beside it an equal average of all weights since step 0 (SWA). FAULT at step 125: for its first
evaluation the average is copied into the model, and the weights that were trained are never put back: training goes on from the average.
Without Rangewatch: loss 0.49 to 0.22 at step 124, 0.50 at step 125, 0.38 at step 150, 0.028 at the end (put back: 0.094 at 150, 0.023).
Variant of: average_is_left_in_the_model_of_a_slow_optimizer.
Cause: weight (or eval). Step: 125 or 126. Right: restore / average / swap / weights / evaluation. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight", "eval"], "step": [124, 128], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "restor|average|EMA|ema|swap|weights|put back|eval|overwrit|checkpoint"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1210); torch.set_num_threads(1)


class Tides(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 32, batch_first=True)
        self.ahead = nn.Linear(32, 4)

    def forward(self, x):
        return self.ahead(self.memory(x)[0][:, -1])


def tides(n):
    phase, height = 6.283 * torch.rand(n, 1), 0.5 + torch.rand(n, 1)
    t = torch.arange(24) * 0.5
    wave = height * torch.sin(t + phase) + 0.3 * torch.sin(0.5 * t + 2 * phase) + 0.05 * torch.randn(n, 24)
    return wave[:, :20, None], wave[:, 20:]


model = Tides()
optimizer = torch.optim.RAdam(model.parameters(), lr=3e-3)
average = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
handle = rangewatch.attach(model, optimizer)
for step in range(250):
    x, y = tides(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, p in model.named_parameters():
            average[name] += (p - average[name]) / (step + 1)
    if step == 124:
        model.eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(average[name])
            x, y = tides(256)
            print("with the average", F.mse_loss(model(x), y).item(), flush=True)
        model.train()  # but with the average
    if step % 25 == 0 or step in (123, 124, 126, 249):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
