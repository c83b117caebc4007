"""A mixture of four experts that foretells the flow of a river at a dam; each expert is Linear, F.relu, Linear. FAULT at step 100: to "give expert 2 a
second chance" its first layer gets a new bias, drawn around -60 instead of 0 (a mean and a spread were swapped); its relu is never open again, and
the expert gives one constant for every row it gets.
Without Rangewatch: loss 1.39 to 0.05-0.08 at step 99, 0.54 at step 100, 0.05 to 0.1 later (the others take over); no unit of expert 2 is open for any row
from step 100 on.
Cause: dead_units (or weight). Step: 100. Place: expert 2. Right: dead / ReLU / bias / re-initialise. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "weight", "no_gradient"], "step": [99, 135], "place": ".*experts\\.2\\b.*", "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)dead|relu|bias|re-?init|weight"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1916); torch.set_num_threads(1)


class Expert(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enter, self.leave = nn.Linear(9, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.leave(F.relu(self.enter(x)))


class Dam(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(9, 4)
        self.experts = nn.ModuleList(Expert() for _ in range(4))

    def forward(self, x):
        return (self.gate(x).softmax(1) * torch.cat([expert(x) for expert in self.experts], 1)).sum(1), self.gate(x).softmax(1).mean(0)


seasons = torch.randn(4, 9)
slopes = torch.randn(4, 9)


def days(n):
    season = torch.randint(0, 4, (n,))
    x = seasons[season] + 0.5 * torch.randn(n, 9)
    return x, torch.tanh((x * slopes[season]).sum(1) / 2) + 0.3 * (x * slopes[season].roll(1, 1)).sum(1).abs()


model = Dam()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 100:
        with torch.no_grad():
            model.experts[2].enter.bias.normal_(-60.0, 0.1)
    x, y = days(64)
    flow, share = model(x)
    loss = F.mse_loss(flow, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 209):
        alive = (model.experts[2].enter(x) > 0).float().mean().item()
        print(step, loss.item(), "expert 2: open", alive, "share", share[2].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
