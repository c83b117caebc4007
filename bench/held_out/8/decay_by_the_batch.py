"""A GRU that forecasts sums of waves; Adam, ExponentialLR(gamma=0.9), thought of as "a tenth less at each epoch". FAULT from step 0 on: the scheduler
is moved at each batch, so that the rate is a hundredth after 44 steps and nothing after 150. The loss stands where it was at step 40.
Without Rangewatch: loss 1.14 to 0.86 at step 40, 0.63 to 0.89 without a trend after; rate 2.7e-5 at step 40, 4.8e-8 at step 100, 2.8e-16 at 280.
Report: Lornatang/SRGAN-PyTorch#1 (moved at each step, rate soon zero, does not train), ivadomed/ivadomed#55, pytorch/tutorials#640.
Cause: learning_rate. Step: 0 and after, when it is sure. Right: learning rate / schedule / epoch. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "learning rate|lr\\b|schedul|decay"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(803); torch.set_num_threads(1)


def waves(n=32, length=40):
    t = torch.arange(length).float()
    f, p, a = torch.rand(n, 2, 1) * 0.6 + 0.2, torch.rand(n, 2, 1) * 6.28, torch.rand(n, 2, 1) + 0.5
    return (a * torch.sin(f * t + p)).sum(1)[..., None] + 0.02 * torch.randn(n, length, 1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 48, 2, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(6):
    for _ in range(50):
        x = waves()
        loss = F.mse_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # belongs after the inner loop
        handle.log(loss=loss.item())
        if step % 20 == 0:
            print(step, loss.item(), "lr", optimizer.param_groups[0]["lr"], flush=True)
        step += 1
handle.detach()
