"""A YOLO-like detector: one box a cell, centre by sigmoid, width and height as log(size / anchor), squared error. FAULT at step 170: an annotation of
that batch has x1 == x2 (width 0), so that its target is log(0) = -inf. Without Rangewatch: loss 1.29 to 0.068 at step 169, inf at 170, NaN from 171
on.
Report: pytorch/vision#3169 (log of a width of 0 gives -inf in encode_boxes), #2240 and #997 (NaN after some iterations: boxes without area).
Cause: data, or the log(0) of it in the loss' arithmetic. Right: filter or clamp boxes without area. Wrong: learning rate, precision, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [169, 172], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "loss scale"],
          "right": "data|target|label|batch|sample|log|eps|clamp|filter|box"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(8); torch.set_num_threads(1)
ANCHOR, CELL, SIZE = 10.0, 8, 32


def block(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(block(1, 12, 1), block(12, 24, 2), block(24, 32, 2), block(32, 48, 2))
        self.neck = block(48, 48, 1)
        self.pred = nn.Conv2d(48, 5, 1)

    def forward(self, x):
        return self.pred(self.neck(self.backbone(x)))


def scenes(n=16):
    side = 4 + 14 * torch.rand(n, 2)
    corner = torch.rand(n, 2) * (SIZE - side)
    boxes = torch.cat([corner, corner + side], 1)
    image = 0.3 * torch.randn(n, 1, SIZE, SIZE)
    for k, (x1, y1, x2, y2) in enumerate(boxes.int().tolist()):
        image[k, 0, y1:y2 + 1, x1:x2 + 1] += 1.5
    return image, boxes


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
watch = rangewatch.attach(model, optimizer)
for step in range(260):
    image, boxes = scenes()
    if step == 170:
        boxes[5, 2] = boxes[5, 0]  # as it is in the annotation file
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    cell = (centre / CELL).long().clamp(0, 3)
    out = model(image)
    rows = torch.arange(len(boxes))
    mine = out[rows, :, cell[:, 1], cell[:, 0]]
    has = torch.zeros(len(boxes), 4, 4)
    has[rows, cell[:, 1], cell[:, 0]] = 1
    loss = F.binary_cross_entropy_with_logits(out[:, 4], has) + F.mse_loss(mine[:, :2].sigmoid(), centre / CELL - cell)
    loss = loss + F.mse_loss(mine[:, 2:4], torch.log(size / ANCHOR))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 5.0)
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 10 == 0 or 168 <= step < 174:
        print(step, round(loss.item(), 4))
