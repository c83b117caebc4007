"""A two-layer residual net learns the step map of a damped pendulum and is unrolled for 6 steps in the loss (SGD with momentum 0.9). FAULT: the linear warm-up ends at 0.2 instead of 0.02; it climbs from step 0 to 150, and once the rate is past the edge
of stability (NATURAL, no single planted step) the loss rises a thousandfold and more within 50 steps.
Without Rangewatch: loss 3.1 to 2.0 at step 10, 2.3 at 20, 62 at 30, 1e9 at 40, 1e14 at 50, NaN by step 80 (with a peak of 0.02: 0.02 at the end).
Cause: learning_rate. Step: some 20 to 40 (builds up). Right: lower the peak learning rate. Wrong: GradScaler, attention mask, bad data, checkpoint."""
EXPECT = {"cause": ["learning_rate"], "step": [15, 60], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|warm", "wrong": ["GradScaler", "attention mask", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5108)
torch.set_num_threads(1)
PEAK, WARM, DT = 0.2, 150, 0.15


def physics(s):
    angle, speed = s.unbind(-1)
    speed = speed + DT * (-2.0 * torch.sin(angle) - 0.1 * speed)
    return torch.stack([angle + DT * speed, speed], -1)


class StepMap(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 64)
        self.outer = nn.Linear(64, 2)

    def forward(self, s):
        return s + self.outer(torch.tanh(self.inner(s)))


pend = StepMap()
opt = torch.optim.SGD(pend.parameters(), lr=PEAK, momentum=0.9)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / WARM))
handle = rangewatch.attach(pend, opt)
for step in range(180):
    true = torch.randn(64, 2)
    guess, loss = true, 0.0
    for _ in range(6):
        true, guess = physics(true), pend(guess)
        loss = loss + (guess - true).square().mean() / 6
    opt.zero_grad()
    loss.backward()
    opt.step()
    rate = opt.param_groups[0]["lr"]
    warm.step()
    handle.log(loss=loss.item())
    if step % 10 == 0 or step == 179:
        print(step, "rate", round(rate, 4), "loss", f"{loss.item():.4g}", flush=True)
handle.detach()
