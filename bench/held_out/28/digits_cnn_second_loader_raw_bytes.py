"""A conv net that reads drawn digits-like glyphs. FAULT at step 100: the second half of the set comes from another loader, which gives bytes 0 to 255 as floats:
the division by 255 and the mean and deviation of the first loader are missing.
Without Rangewatch: loss 2.30 to 0.51 at step 99, 1745 at step 100, 5.1e6 at step 102, 2.29 to 2.32 (log 10 is 2.303) from step 120 to the end.
Cause: data. Step: 100. Right: normalise / input / data / 255. Wrong: GradScaler, attention mask, checkpoint."""
EXPECT = {"cause": ["data"], "step": [99, 104], "place": None, "rank": None,
          "right": "(?i)data|input|batch|normali|scale of|255|loader|preprocess", "wrong": ["GradScaler", "attention mask", "(?i)log of (0|zero)"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(8); torch.set_num_threads(1)
glyphs = (torch.rand(10, 1, 14, 14) < 0.35).float()


def draw(n):
    y = torch.randint(0, 10, (n,))
    img = torch.stack([torch.roll(glyphs[k], (int(torch.randint(-2, 3, ())), int(torch.randint(-2, 3, ()))), (1, 2)) for k in y])
    return ((200 * img + 30 + 40 * torch.randn_like(img)).clamp(0, 255)).byte(), y


class TrainSet:
    def batch(self):
        raw, y = draw(40)
        return (raw.float() / 255 - 0.4) / 0.32, y


class ExtraSet:
    def batch(self):
        raw, y = draw(40)
        return raw.float(), y


model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 25, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
first, extra = TrainSet(), ExtraSet()
for step in range(200):
    x, y = (first if step < 100 else extra).batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104 or step == 199:
        print(step, loss.item(), x.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
