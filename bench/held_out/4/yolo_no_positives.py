"""A tiny one-stage detector on a 6 x 6 grid: objectness, and box and class losses averaged over the cells that hold an object. FAULT at step 100: a
batch of background images, no cell is positive, and the average is 0 / 0. Without Rangewatch: loss 5.5 to 0.5 at step 99, NaN at step 100,
every weight NaN after it.
Report: WongKinYiu/yolov9#662 (division by zero in the loss when no targets), open-mmlab/mmdetection#2680.
Cause: the loss's arithmetic, a mean over nothing, by a batch without objects: data will do as well. Right: the empty mean / guard / clamp the
count. Wrong: learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "backward_arithmetic", "data"], "step": [100, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "loss scale"],
          "right": "empty|mean|divi|count|0 / 0|no (target|label|object|positive)|the loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(29); torch.set_num_threads(1)
N = 6


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.SiLU())
        self.objectness, self.box, self.kind = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 2, 1), nn.Conv2d(32, 3, 1)

    def forward(self, x):
        x = self.backbone(x)
        return self.objectness(x)[:, 0], self.box(x).permute(0, 2, 3, 1), self.kind(x).permute(0, 2, 3, 1)


def batch(objects, n=16):
    image, has = 0.1 * torch.randn(n, 1, 4 * N, 4 * N), torch.zeros(n, N, N)
    size, kind = torch.zeros(n, N, N, 2), torch.zeros(n, N, N, dtype=torch.long)
    for b in range(n):
        for _ in range(objects):
            i, j, k = torch.randint(0, N, ()).item(), torch.randint(0, N, ()).item(), torch.randint(0, 3, ()).item()
            h, w = torch.randint(1, 5, (2,)).tolist()
            has[b, i, j], kind[b, i, j], size[b, i, j] = 1, k, torch.tensor([h / 4.0, w / 4.0])
            image[b, 0, 4 * i:4 * i + h, 4 * j:4 * j + w] += k + 1.0
    return image, has, size, kind


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
watch = rangewatch.attach(model, optimizer)
for step in range(130):
    image, has, size, kind = batch(0 if step == 100 else 3)
    objectness, box, logits = model(image)
    per_cell = (box - size).abs().mean(-1) + F.cross_entropy(logits.permute(0, 3, 1, 2), kind, reduction="none")
    loss = 4 * F.binary_cross_entropy_with_logits(objectness, has) + (per_cell * has).sum() / has.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 98 <= step < 103:
        print(step, round(loss.item(), 4))
