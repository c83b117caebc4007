"""One-box detector (convolutions, box as cx, cy, w, h through sigmoid) trained with CIoU loss, written as in the paper. FAULT at step
120: a label file has a box with w = h = 0, atan(w_gt / h_gt) is atan(0/0) = NaN, so the loss is NaN while all that the network
put out is finite. Report: Zzh-tju/DIoU-pytorch-detectron#3, Megvii-BaseDetection/YOLOX#1565, pytorch/vision#7746.
Cause: data (the labels) or forward_arithmetic (in the loss), step 120. Right: the loss / targets / 0/0. Wrong: learning rate, mask, bf16."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [120, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler"], "right": "loss|[Tt]arget|label|[Dd]ivi|0/0|zero"}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

def ciou_loss(p, t):
    p1, p2, t1, t2 = p[:, :2] - p[:, 2:] / 2, p[:, :2] + p[:, 2:] / 2, t[:, :2] - t[:, 2:] / 2, t[:, :2] + t[:, 2:] / 2
    inter = (torch.min(p2, t2) - torch.max(p1, t1)).clamp(min=0).prod(1)
    iou = inter / (p[:, 2:].prod(1) + t[:, 2:].prod(1) - inter + 1e-7)
    diagonal = (torch.max(p2, t2) - torch.min(p1, t1)).pow(2).sum(1) + 1e-7
    distance = (p[:, :2] - t[:, :2]).pow(2).sum(1)
    v = 4 / math.pi ** 2 * (torch.atan(t[:, 2] / t[:, 3]) - torch.atan(p[:, 2] / p[:, 3])).pow(2)
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return (1 - iou + distance / diagonal + alpha * v).mean()

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.SiLU())
        self.head = nn.Linear(32 * 16, 4)
    def forward(self, x):
        return self.head(self.backbone(x).flatten(1)).sigmoid()

def batch(n=32):
    boxes = torch.cat([torch.rand(n, 2) * 0.4 + 0.3, torch.rand(n, 2) * 0.4 + 0.15], 1)
    grid = (torch.arange(16) + 0.5) / 16
    inside = ((grid[None] - boxes[:, :1]).abs() < boxes[:, 2:3] / 2)[:, None, :] & ((grid[None] - boxes[:, 1:2]).abs() < boxes[:, 3:] / 2)[:, :, None]
    return inside[:, None].float() + 0.1 * torch.randn(n, 1, 16, 16), boxes

net = Detector()
opt = torch.optim.AdamW(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for step in range(200):
    images, boxes = batch()
    if step == 120:
        boxes[9, 2:] = 0.0
    loss = ciou_loss(net(images), boxes)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item())
