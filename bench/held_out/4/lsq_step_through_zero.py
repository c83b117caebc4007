"""Quantization aware training with learned step sizes (LSQ), 4 bits for weights and activations. FAULT at step 100: a second phase gives the group
of the step sizes a rate of 0.3, larger than they are: they walk through 0 and turn negative, the clamp of an activation is then 0 everywhere and the
layers behind it are dead. Without Rangewatch: loss 2.36 to 0.75 at step 99, 1.6 at 101, 2.29 at 105 and above 1.9 from there on; act_step and weight_step change sign.
Report: zhutmost/lsq-net#17 (step size 0, loss is NaN, "not rarely"), ZouJiu1/LSQplus#12 (step sizes become negative and the model really bad).
Cause: the learning rate of the step sizes, or those weights themselves. Place: a step size or the layer it is of. Right: the rate / bound / warm up.
Wrong: data, mask, GradScaler."""
EXPECT = {"cause": ["learning_rate", "weight"], "step": [100, 115], "place": r"layers\.\d.*", "rank": 0,
          "wrong": ["leave out samples", "[Mm]ask", "GradScaler"],
          "right": "learning rate|clamp|positive|eps|[Ww]arm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(37); torch.set_num_threads(1)


def rounded(x):
    return x + (x.round() - x).detach()


class QuantLinear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.weight_step, self.act_step = nn.Parameter(self.weight.detach().abs().mean() * 0.75), nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        x = rounded((x / self.act_step).clamp(0, 15)) * self.act_step
        weight = rounded((self.weight / self.weight_step).clamp(-8, 7)) * self.weight_step
        return F.linear(x, weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layers, self.head = nn.Linear(16, 64), nn.ModuleList([QuantLinear(64, 64) for _ in range(3)]), nn.Linear(64, 10)

    def forward(self, x):
        x = self.stem(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


model, teacher = Net(), nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
steps = [p for name, p in model.named_parameters() if name.endswith("_step")]
rest = [p for name, p in model.named_parameters() if not name.endswith("_step")]
optimizer = torch.optim.Adam([{"params": rest, "lr": 3e-3}, {"params": steps, "lr": 1e-3}])
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 100:
        optimizer.param_groups[1]["lr"] = 0.3
    x = torch.randn(128, 16)
    with torch.no_grad():
        y = (teacher(x) * 4).argmax(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 10 == 0 or 98 < step < 106:
        print(step, round(loss.item(), 4), [(round(l.act_step.item(), 4), round(l.weight_step.item(), 4)) for l in model.layers])
