"""A recurrent net that foretells the tide at a harbour. FAULT at step 0: the limit of clip_grad_norm_ was meant to be 1.0 and is 1e-6 (it was taken for
the eps in the line above); the gradient has a norm of about 1, so SGD moves a millionth of its way: nothing is learned.
Without Rangewatch: loss 0.55 at step 0, 0.72 at the end, norm before the clip 0.2 to 1; with a limit of 1.0 it is 0.002.
Cause: clip. Step: any. Right: raise the limit (max_norm) of the clip. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["clip"], "step": [0, 199], "place": None, "rank": 0, "least": "info",
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)clip|max_norm|limit"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1907); torch.set_num_threads(1)


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.LSTM(2, 24, batch_first=True)
        self.level = nn.Linear(24, 1)

    def forward(self, x):
        return self.level(self.past(x)[0][:, -1])


def hours(n):
    t = 1000 * torch.rand(n, 1) + torch.arange(25)
    level = torch.sin(6.2832 * t / 12.42) + 0.4 * torch.sin(6.2832 * t / 24.07)
    wind = torch.randn(n, 25).cumsum(1) / 8
    return torch.stack((level + 0.2 * wind, wind), 2)


model = Tide()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
eps, max_norm = 1.0, 1e-6
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    series = hours(48)
    loss = F.mse_loss(model(series[:, :-1]), series[:, -1, :1])
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "norm before the clip", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
