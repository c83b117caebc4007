"""A convolutional net names blood cells under the microscope; each step is made of four micro-batches whose gradients add up. FAULT at step 0: the last
layer's weights were drawn with a deviation of 1.5 (0.015 was meant): the first loss is forty times that of guessing, and the gradient that goes back into
the filters is a hundred times too large.
Without Rangewatch: loss 64 at step 0, 17 at step 10, 1.69 at step 40, 1.46 at the end (guessing is 1.61); with a deviation of 0.015 it is 1.76 at step 0
and 0.03 at the end.
Cause: weight. Step: 0 to 30 (micro-batches may be counted). Right: initialisation / std / last layer / logits. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["weight"], "step": [0, 30], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "(?i)initiali|\\binit|\\bstd\\b|deviation|smaller weight|last layer|logit|head"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1822); torch.set_num_threads(1)
KINDS, PARTS = 5, 4
rows, columns = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")


def cells(n):
    """A kind has its size of nucleus and its grain."""
    kind = torch.randint(0, KINDS, (n,))
    k = kind[:, None, None].float()
    radius = (rows**2 + columns**2).sqrt()
    nucleus = torch.sigmoid((0.25 + 0.09 * k + 0.04 * torch.randn(n, 1, 1) - radius) * 14)
    grain = torch.sin((2 + 2 * k) * (rows * 3 + 6 * torch.rand(n, 1, 1))) * torch.sigmoid((0.85 - radius) * 14)
    return torch.stack((nucleus, grain), 1) + 0.5 * torch.randn(n, 2, 16, 16), kind


model = nn.Sequential(
    nn.Conv2d(2, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, KINDS),
)
nn.init.normal_(model[-1].weight, std=1.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(PARTS):
        x, kind = cells(8)
        loss = F.cross_entropy(model(x), kind) / PARTS
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 5, 10, 159):
        print(step, total, flush=True)
    handle.log(loss=total)
handle.detach()
