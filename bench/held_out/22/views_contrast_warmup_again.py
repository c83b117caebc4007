"""A net learns without labels that two views of one thing belong together (InfoNCE). The rate is to rise with the square of the step over 100 steps to its peak and stay. FAULT at step 20 (the
second of twelve epochs): the schedule is made anew at each epoch with last_epoch = the number of the epoch, where it should be the number of steps.
So the rate falls back at each epoch to a thousandth or a few of its peak, climbs 20 steps, and falls back again; it never sees more than a tenth of the peak.
Without Rangewatch: loss 9.8 at step 0, 8.3 at step 20, 0.99 at step 239, where the rate is 0.001 of 0.01 (with steps counted right: 0.53).
Causes: learning_rate. Right: the schedule / count steps, not epochs / make it once. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [19, 239], "place": None, "rank": 0, "least": "info",
          "right": "(?i)schedul|learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2218); torch.set_num_threads(1)
view_a, view_b = torch.randn(16, 32) / 4, torch.randn(16, 32) / 4


def tower():
    return nn.Sequential(nn.Linear(32, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 24))


model = nn.ModuleDict({"left": tower(), "right": tower()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(12):
    last = -1 if epoch == 0 else epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100) ** 2, last_epoch=last)
    for _ in range(20):
        thing = torch.randn(96, 16)
        a = F.normalize(model["left"](torch.tanh(thing @ view_a) + 0.1 * torch.randn(96, 32)), dim=1)
        b = F.normalize(model["right"](torch.sin(thing @ view_b) + 0.1 * torch.randn(96, 32)), dim=1)
        match = a @ b.T / 0.1
        loss = F.cross_entropy(match, torch.arange(96)) + F.cross_entropy(match.T, torch.arange(96))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 20 in (0, 19):
            print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
        schedule.step()
        step += 1
handle.detach()
