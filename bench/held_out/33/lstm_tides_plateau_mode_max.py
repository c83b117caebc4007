"""An LSTM forecasts the next value of tides (MSE, Adam). After 8 "epochs" of 10 steps the rate is given to ReduceLROnPlateau on the epoch's mean loss. FAULT: mode="max" is for an accuracy: a
falling loss is "no better", and the rate goes down by 10 after each fourth epoch, from about step 120 on (step 119: 1e-4, 159: 1e-5, 199: 1e-6, 239: 1e-7).
Without Rangewatch: loss 1.0 to 0.13 at step 119, then hardly any better: 0.114 at the end (0.049 with mode="min").
Cause: learning_rate. Step: 120. Right: learning rate / scheduler / plateau / mode. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["learning_rate"], "step": [115, 245], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|schedul|plateau", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "[Cc]lip"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3313); torch.set_num_threads(1)


class Tides(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.lstm(x[..., None])[0]).squeeze(-1)


def tides(n):
    t = torch.arange(25.0) + torch.rand(n, 1) * 100
    moon, sun = torch.rand(n, 1) + 0.8, torch.rand(n, 1) * 0.8
    s = moon * torch.sin(t / 1.98 + torch.rand(n, 1) * 6) + sun * torch.sin(t / 1.2 + torch.rand(n, 1) * 6)
    return s[:, :-1], s[:, 1:]


net = Tides()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=3)
handle = rangewatch.attach(net, optimizer)
seen = []
for step in range(280):
    x, y = tides(32)
    loss = F.mse_loss(net(x)[:, 4:], y[:, 4:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(loss.item())
    if len(seen) == 10:
        if step >= 80:
            plateau.step(sum(seen) / 10)
        print(step, sum(seen) / 10, "lr", optimizer.param_groups[0]["lr"], flush=True)
        seen = []
    handle.log(loss=loss.item())
handle.detach()
