"""A GRU that tells four kinds of heart beat. FAULT from step 90 on: the batch is cut in eight to save memory, and the gradients of the eight mean losses
are summed and not divided by eight; SGD takes steps eight times as long.
Without Rangewatch: loss 1.39 to 0.077 at step 89 (gradient norm 0.35), 0.064 at step 90 (norm 3.7), 3.4 at step 93 (norm 42), 163 at step 100, 1.37 to
1.46 (chance) from step 120 on.
Cause: learning_rate (or the accumulation: optimizer; or no clip). Step: 90. Right: divide / accumulate / learning rate / gradient norm. Wrong: mask."""
EXPECT = {"cause": ["learning_rate", "optimizer", "clip"], "step": [90, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|accumul|divide|gradient norm|explod|micro|sum"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1517); torch.set_num_threads(1)


class Heart(nn.Module):
    """The kind of a heart beat from its trace."""
    def __init__(self):
        super().__init__()
        self.beat = nn.GRU(4, 32, batch_first=True)
        self.kind = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, x):
        return self.kind(self.beat(x.unflatten(1, (16, 4)))[0].mean(1))


time = torch.arange(64) / 64
place = torch.tensor([0.2, 0.4, 0.6, 0.8])


def beats(n):
    y = torch.randint(0, 4, (n,))
    peak = torch.exp(-((time - place[y][:, None] - 0.04 * torch.randn(n, 1)) * 12) ** 2)
    return 2 * peak * (0.7 + 0.6 * torch.rand(n, 1)) + 0.2 * torch.randn(n, 64), y


model = Heart()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = beats(64)
    parts = 1 if step < 90 else 8  # longer traces are to come: the batch is cut to save memory
    optimizer.zero_grad()
    mean = 0.0
    for px, py in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = F.cross_entropy(model(px), py)
        loss.backward()
        mean += loss.item() / parts
    optimizer.step()
    if step % 20 == 0 or 88 < step < 96 or step == 199:
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
        print(step, mean, "gradient norm", norm, flush=True)
    handle.log(loss=mean)
handle.detach()
