"""A pre-trained Conv1d encoder gets a new head (fine-tuning by gradual thawing, RAdam). HEALTHY: up to step 100 the encoder is frozen (no gradient there, on purpose), at step 100 its upper layer thaws and comes
into the optimizer by `add_param_group` at a tenth of the rate, at step 170 a residual block that begins at zero grows in by a gate; the lowest layer stays frozen for good.
Without Rangewatch: loss 2.36 to 0.80 at step 100, 0.63 at 160, 0.25 at the end; gate 0 to -0.06."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3436); torch.set_num_threads(1)
tones = torch.linspace(0.4, 2.9, 8)


def speech(n, kind):
    y = torch.randint(0, 8, (n,))
    t = torch.arange(48.0) / 3
    x = torch.sin(tones[y, None] * t + 6.28 * torch.rand(n, 1)) + 0.25 * torch.randn(n, 48)
    return x.unsqueeze(1), (y % 4 if kind == "old" else (y * 3 % 8) // 2)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Conv1d(1, 16, 7, stride=2), nn.Conv1d(16, 32, 5, stride=2)
        self.grown = nn.Conv1d(32, 32, 3, padding=1)
        self.gate = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        h = nn.functional.silu(self.high(nn.functional.silu(self.low(x))))
        h = h + self.gate * nn.functional.silu(self.grown(h))
        return self.head(h.mean(2))


model = Tagger()
pre = torch.optim.Adam([*model.low.parameters(), *model.high.parameters(), *model.head.parameters()], lr=4e-3)
for step in range(200):
    x, y = speech(64, "old")
    loss = nn.functional.cross_entropy(model(x), y)
    pre.zero_grad()
    loss.backward()
    pre.step()
print("pre-trained", loss.item())
model.requires_grad_(False)
model.head = nn.Linear(32, 4)
optimizer = torch.optim.RAdam(model.head.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(270):
    if step == 100:
        model.high.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.high.parameters()), "lr": 1e-3})
    if step == 170:
        model.grown.requires_grad_(True)
        model.gate.requires_grad_(True)
        optimizer.add_param_group({"params": [*model.grown.parameters(), model.gate], "lr": 3e-3})
    x, y = speech(64, "new")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 269:
        print(step, loss.item(), "gate", model.gate.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
