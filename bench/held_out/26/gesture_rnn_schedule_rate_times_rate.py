"""A conv + LSTM net for gestures, SGD with Nesterov and a LambdaLR. FAULT from the start: the lambda gives the rate itself (2e-2 and falling), where a factor is asked for: the rate is
2e-2 * 2e-2 = 4e-4, and the net hardly learns.
Without Rangewatch: loss 1.10 at step 0, 1.10 to 1.11 to the end (log 3 is 1.099). With a factor given it is 0.76 at step 80 and 0.058 at the end.
Cause: learning_rate. Step: any. Right: learning rate / LambdaLR / factor. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate", "optimizer", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|lambda|schedul|factor", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6129); torch.set_num_threads(1)
PEAK, WARM, STEPS = 2e-2, 20, 200


class Gesture(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 24, 5, stride=2)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.lstm(F.relu(self.conv(x)).transpose(1, 2))[0].mean(1))


def gestures(n):
    kind, s = torch.randint(0, 3, (n,)), torch.linspace(0, 6.28, 40) + torch.rand(n, 1)
    second = torch.where((kind == 0)[:, None], s.cos(), torch.where((kind == 1)[:, None], -s.cos(), (2 * s).sin()))
    return 2 * torch.stack((s.sin(), second), 1) + 0.3 * torch.randn(n, 2, 40), kind


def rate(step):
    if step < WARM:
        return PEAK * (step + 1) / WARM
    return PEAK * 0.5 * (1 + math.cos(math.pi * (step - WARM) / (STEPS - WARM)))


net = Gesture()
optimizer = torch.optim.SGD(net.parameters(), lr=PEAK, momentum=0.95, nesterov=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
handle = rangewatch.attach(net, optimizer)
for step in range(STEPS):
    x, kind = gestures(64)
    loss = F.cross_entropy(net(x), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(step, loss.item(), "lr", schedule.get_last_lr()[0], flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
