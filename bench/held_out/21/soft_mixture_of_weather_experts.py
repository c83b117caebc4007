"""A soft mixture of four experts predicts three weather values; an expert is a class of its own that uses torch.nn.functional.relu (there is no module of an activation). FAULT at
step 100: a "warm restart" of expert 2 fills the bias of its hidden layer with -30 (the pre-activation is of the order of 3): relu gives 0 for each row, no gradient
gets back, the expert is dead for good.
Without Rangewatch: loss 1.14 to 0.40 at step 99, 0.44 at step 100, 0.24 at the end (the others go on); of expert 2 half of the units are active before, none from step 100 on,
its gradient is 0.
Cause: dead_units (or the weight: its bias; or no_gradient for what lies before it). Step: 100 on, a state. Place: expert 2. Right: dead / relu / bias / leaky.
Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "weight", "no_gradient"], "step": [99, 219], "place": "experts\\.2.*", "rank": 0,
          "right": "(?i)dead|relu|bias|leaky|init|gradient", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2120)
torch.set_num_threads(1)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(10, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.narrow(F.relu(self.wide(x)))


class Mixture(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(n)])
        self.trust = nn.Linear(10, n)

    def forward(self, x):
        said = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.trust(x).softmax(1)[:, :, None] * said).sum(1)


fronts = torch.randn(4, 10, 3)
where = torch.randn(10, 4)


def weather(n):
    x = torch.randn(n, 10)
    kind = (x @ where).argmax(1)
    return x, torch.einsum("bi,bio->bo", x, fronts[kind]) / 3 + 0.05 * torch.randn(n, 3)


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:
        model.experts[2].wide.bias.data.fill_(-30.0)
    x, y = weather(128)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 219):
        alive = [(expert.wide(x) > 0).float().mean().item() for expert in model.experts]
        print(step, loss.item(), "active", *(f"{a:.2f}" for a in alive), "gradient", model.experts[2].wide.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
