"""A gated MLP that says which customers leave; each customer's loss is weighted by the log of the days since the last visit. FAULT at step 112: the first
customer who has come today, 0 days ago: log(0) is -inf, and it is a factor of the loss.
Without Rangewatch: loss 2.3 to about 0.6 at step 111; -inf at step 112, NaN at each step after it. The outputs of the model at step 112 are finite.
Variant of: arithmetic: log_of_zero_in_the_weights_of_a_loss.
Cause: forward_arithmetic (or data: a 0 among the days). Step: 112. Right: log / zero / eps / clamp / loss / weight. Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [111, 113], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "log|zero|epsilon|eps|clamp|loss|weight|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1101); torch.set_num_threads(1)
taste = torch.randn(20)


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(20, 64)
        self.gate = nn.Linear(32, 64)
        self.leave = nn.Linear(32, 1)

    def forward(self, x):
        h = F.glu(self.enter(x))
        h = h + F.glu(self.gate(h))
        return self.leave(h)[:, 0]


def customers(n):
    x = torch.randn(n, 20)
    y = (x @ taste + x[:, 0] * x[:, 1] + 0.5 * torch.randn(n) > 0).float()
    return x, y, torch.randint(2, 60, (n,)).float()


model = ChurnNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y, days = customers(64)
    if step == 112:
        days[17] = 0.0  # came today
    weight = torch.log(days)
    loss = (weight * F.binary_cross_entropy_with_logits(model(x), y, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 109 < step < 115:
        print(step, loss.item(), "smallest weight", weight.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
