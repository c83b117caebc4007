"""A net for gestures in float16 autocast with a GradScaler; channels are weighed by the root of a strength that is kept at 0 or more. FAULT at step 92: a
channel is pruned, its strength set to 0.0. The derivative of the root there is inf at any scale: each later step is skipped, the scale halves each time.
Without Rangewatch: loss 1.83 to 0.85 at step 91, 0.8 to 1.4 from then on; the scale is 8192 to step 91, 16 at step 100, 2e-38 at the end.
Variant of: gradient_is_inf_at_any_scale.
Cause: backward_arithmetic. Step: 92. Place: strength. Right: sqrt / root / zero / eps. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [91, 96], "place": ".*(strength|weigh).*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "(smaller|lower) (init_scale|initial scale)"],
          "right": "sqrt|root|zero|eps|backward|derivative"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1211); torch.set_num_threads(1)
GESTURES = 6
move = torch.randn(GESTURES, 6, 20)


class Weigh(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.strength = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x * self.strength.sqrt()[:, None]


class GestureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(6, 24, 5, padding=2)
        self.weigh = Weigh(24)
        self.second = nn.Conv1d(24, 24, 5, padding=2)
        self.name = nn.Linear(24, GESTURES)

    def forward(self, x):
        h = self.weigh(F.relu(self.first(x)))
        return self.name(F.relu(self.second(h)).mean(2))


model = GestureNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(230):
    if step == 92:
        with torch.no_grad():
            model.weigh.strength[model.weigh.strength.argmin()] = 0.0
    y = torch.randint(0, GESTURES, (32,))
    x = move[y] + 2 * torch.randn(32, 6, 20)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        model.weigh.strength.clamp_(min=0.0)
    if step % 20 == 0 or step in (91, 92, 93, 229):
        print(step, loss.item(), scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
