"""A plain ReLU RNN adds up 50 days of rain minus evaporation to a reservoir's level (SGD with momentum); recurrent weight starts at the identity (IRNN).
FAULT at step 0: natural. No gradient clipping: over 50 steps the recurrence's gradient grows by a power of its largest eigenvalue; one step is thrown far and the loss explodes.
Without Rangewatch: mse 10.7 in step 0 (gradient norm 723), 1e17 in step 1, then 1e12 to 1e14; still 2e4 at step 219. With the norm clipped to 1.0 it is 0.08.
Cause: clip (or learning_rate). Step: 0 to 10. Right: clip the gradient norm / lower lr. Wrong: GradScaler, attention mask, zero_grad."""
EXPECT = {"cause": ["clip", "learning_rate"], "step": [0, 10], "place": None, "rank": None,
          "right": r"(?i)clip|(lower|reduce|smaller).{0,30}(learning rate|lr)|explod", "wrong": ["GradScaler", "(?i)attention mask", r"(?i)call .{0,20}zero_grad", "(?i)raise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(50)
torch.set_num_threads(1)


def reservoirs(n, days=50):
    rain = (torch.rand(n, days) < 0.3).float() * torch.rand(n, days) * 3
    heat = torch.rand(n, days)
    level = (rain - 0.4 * heat).sum(1) / 5
    return torch.stack([rain, heat], 2), level


class Reservoir(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.memory = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.memory.weight_hh_l0)
        nn.init.normal_(self.memory.weight_ih_l0, std=0.05)
        nn.init.zeros_(self.memory.bias_hh_l0)
        nn.init.zeros_(self.memory.bias_ih_l0)
        self.gauge = nn.Linear(hidden, 1)

    def forward(self, weather):
        return self.gauge(self.memory(weather)[1][0]).squeeze(1)


model = Reservoir()
opt = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
handle = rangewatch.attach(model, opt)
for step in range(220):
    weather, level = reservoirs(32)
    loss = (model(weather) - level).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    opt.step()
    if step < 12 or step % 25 == 0 or step == 219:
        print(f"{step}: mse {loss.item():.4g} grad norm {norm:.3g}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
