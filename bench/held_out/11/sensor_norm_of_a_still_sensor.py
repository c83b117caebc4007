"""A net that says from six sensors what somebody does; each window is first standardised per sensor, by hand: (x - mean) / std. FAULT at step 97: a sensor
that lies on a table gives 0 for a whole window: std is 0, and 0 / 0 is NaN.
Without Rangewatch: loss 1.68 to 0.004 at step 96; NaN at step 97 and at each step after it.
Variant of: functions: layernorm_without_eps_of_constant_values.
Cause: forward_arithmetic (or data: a constant window). Step: 97. Place: standard. Right: eps / std / zero / divide / constant. Wrong: rate, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [96, 98], "place": ".*(standard|input|batch).*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eps|epsilon|std|deviation|varian|zero|divi|constant"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1107); torch.set_num_threads(1)
ACTS = 5
pace = torch.tensor([0.1, 0.25, 0.45, 0.7, 1.0])
time = torch.arange(48.0)
grip = torch.randn(ACTS, 6)


class PerSensor(nn.Module):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / x.square().mean(-1, keepdim=True).sqrt()


class ActNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.standard = PerSensor()
        self.body = nn.Sequential(nn.Conv1d(6, 32, 5, stride=2), nn.ReLU(), nn.Conv1d(32, 32, 5, stride=2), nn.ReLU())
        self.act = nn.Linear(32, ACTS)

    def forward(self, x):
        return self.act(self.body(self.standard(x)).amax(2))


def windows(n):
    act = torch.randint(0, ACTS, (n,))
    wave = torch.sin(pace[act, None] * time + 6.28 * torch.rand(n, 1))
    return 3 + grip[act][..., None] * wave[:, None] + 1.5 * torch.randn(n, 6, 48), act


model = ActNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, act = windows(32)
    if step == 97:
        x[11, 4] = 0.0  # lies on a table
    loss = F.cross_entropy(model(x), act)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 95 < step < 100:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
