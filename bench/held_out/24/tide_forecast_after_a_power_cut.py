"""A dilated conv net that forecasts the tide from the last 48 hours. The rate falls from 0.05 by 4.5 % a step. FAULT at step 140: the run comes back after a
power cut; weights and moments are restored, the counter of the schedule is not, so the rate goes from 8e-5 to its peak of 0.05 at once, and with it the
moments of a fine-tuned net.
Without Rangewatch: loss 0.55 to 0.0078 at step 139, 0.0074 at step 140, 0.021 at 141, 0.98 at step 147, 0.013 at the end.
Cause: learning_rate (or optimizer: the state restored is not whole). Step: 140. Right: learning rate / schedule / restore the scheduler.
Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [139, 150], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul|resum|checkpoint", "wrong": ["GradScaler", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2401); torch.set_num_threads(1)
PEAK = 0.05


class Tide(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.inlet = nn.Conv1d(1, c, 3, padding=1)
        self.stack = nn.ModuleList(nn.Conv1d(c, c, 3, padding=2 ** i, dilation=2 ** i) for i in range(4))
        self.out = nn.Linear(c * 4, 6)

    def forward(self, x):
        h = self.inlet(x[:, None])
        for conv in self.stack:
            h = h + F.gelu(conv(h))
        return self.out(h[:, :, -4:].flatten(1))


def gauges(n):
    t = 200 * torch.rand(n, 1) + torch.arange(54.0)
    level = torch.sin(t / 1.97) + 0.4 * torch.sin(t / 2.06 + 1) + 0.2 * torch.sin(t / 4.1) + 0.02 * torch.randn(n, 54)
    return level[:, :48], level[:, 48:]


model = Tide()
optimizer = torch.optim.Adam(model.parameters(), lr=PEAK)
handle = rangewatch.attach(model, optimizer)
counter = 0
for step in range(220):
    if step == 140:
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        counter = 0
    for group in optimizer.param_groups:
        group["lr"] = PEAK * 0.955 ** counter
    counter += 1
    past, future = gauges(32)
    loss = F.mse_loss(model(past), future)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 150 or step == 219:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
