"""A small grid detector by SGD with Nesterov momentum, its loss multiplied by the batch as in YOLO. In the warm-up the biases' rate should fall from
0.05 to 0.002 and the others' rise from 0. FAULT from step 0 on: the groups were put into another order, the loop still takes the second one for the
biases, so that it is the weights that begin at 0.05 and the biases at 0. It explodes within the warm-up.
Without Rangewatch: loss 26.1 at step 0, 9.0 at step 7, 98 at step 9, 8164 at step 10, 4e21 at step 11, NaN from step 12 on; with the right group it is
0.27 at the end.
Report: ultralytics/yolov5#8352 (the warm-up's rate is not that of the biases: order of the groups), ultralytics/yolov5#8356, MultimediaTechLab/YOLO#122.
Cause: learning_rate. Step: 0 to 12. Right: learning rate / warm-up / group. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 20], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "learning rate|lr\\b|warm|group|schedul|step size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(801); torch.set_num_threads(1)
WARMUP, LR, BIAS_WARMUP_LR = 60, 0.002, 0.05
kinds = torch.randn(4, 3, 4, 4)


class GridDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.SiLU(),
                                      nn.Conv2d(32, 48, 3, stride=2, padding=1), nn.SiLU())
        self.head = nn.Conv2d(48, 1 + 4 + 2, 1)

    def forward(self, x):
        return self.head(self.backbone(x))


def batch(n=16):
    pictures = 0.3 * torch.randn(n, 3, 16, 16)
    kind, cell, target = torch.randint(0, 4, (n,)), torch.randint(0, 4, (n, 2)), torch.zeros(n, 4, 4).long() - 1
    for i in range(n):
        r, c = cell[i]
        pictures[i, :, 4 * r:4 * r + 4, 4 * c:4 * c + 4] += kinds[kind[i]]
        target[i, r, c] = kind[i]
    return pictures, target


model = GridDetector()
biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
optimizer = torch.optim.SGD([{"params": biases}, {"params": weights, "weight_decay": 5e-4}], lr=LR, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step <= WARMUP:
        for j, group in enumerate(optimizer.param_groups):
            start = BIAS_WARMUP_LR if j == 1 else 0.0  # the biases were the second group once
            group["lr"] = start + (LR - start) * step / WARMUP
    pictures, target = batch()
    out = model(pictures)
    there = (target >= 0).float()
    objectness = F.binary_cross_entropy_with_logits(out[:, 0], there)
    classes = F.cross_entropy(out[:, 1:5], target, ignore_index=-1)
    boxes = (((out[:, 5:] - 0.5) ** 2).mean(1) * there).sum() / there.sum()
    loss = (objectness + 0.5 * classes + boxes) * len(pictures)  # as in the original: times the batch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 13 or step == 199:
        print(step, loss.item(), [g["lr"] for g in optimizer.param_groups], flush=True)
    handle.log(loss=loss.item())
handle.detach()
