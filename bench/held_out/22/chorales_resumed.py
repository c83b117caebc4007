"""A convolutional net with gates (WaveNet's) predicts the next note of four voices. The rate goes down a cosine of 240 steps. FAULT at step 120: after a stop the run is
resumed; the schedule is given last_epoch = 6, the number of the epoch, where it counts steps: the rate jumps back up to the peak and hardly falls from there.
Without Rangewatch: loss 2.51, mean of 20 steps 1.588 at step 119 where the rate is 0.76; at step 120 it is 1.497, the mean of 20 steps 1.608 at step 140 and 1.565 at the end
(right: 1.534 with a rate of 0).
Causes: learning_rate. Right: the schedule / its state / steps, not epochs. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 239], "place": None, "rank": 0, "least": "info",
          "right": "(?i)schedul|learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2229); torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.conv, self.back, self.d = nn.Conv1d(c, 2 * c, 2, dilation=d), nn.Conv1d(c, c, 1), d

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.d, 0))).chunk(2, 1)
        return x + self.back(a.tanh() * b.sigmoid())


model = nn.Sequential(nn.Conv1d(48, 32, 1), Gated(32, 1), Gated(32, 2), Gated(32, 4), nn.Conv1d(32, 48, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
walk = (2 * torch.randn(4, 12, 12)).softmax(2)


def chorale(n, length=20):
    notes = [torch.randint(0, 12, (n, 4))]
    for _ in range(length):
        notes.append(torch.stack([torch.multinomial(walk[v, notes[-1][:, v]], 1)[:, 0] for v in range(4)], 1))
    return torch.stack(notes, 1)


recent = []
for step in range(240):
    if step == 120:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 6}
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: 0.5 + 0.5 * torch.cos(torch.tensor(3.14159 * s / 240)).item(), last_epoch=saved["epoch"])
    notes = chorale(16)
    x = F.one_hot(notes[:, :-1], 12).float().flatten(2).transpose(1, 2)
    out = model(x).unflatten(1, (4, 12))  # n, voice, note, time
    loss = F.cross_entropy(out.transpose(1, 2), notes[:, 1:].transpose(1, 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    recent.append(loss.item())
    if step % 20 == 0 or 118 < step < 123 or step == 239:
        print(step, loss.item(), "mean of 20", sum(recent[-20:]) / 20, "rate", optimizer.param_groups[0]["lr"], flush=True)
    schedule.step()
handle.detach()
