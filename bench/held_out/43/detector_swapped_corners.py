"""Box head of a detector: RoI features to class and box deltas (dx, dy, log dw, log dh), SGD with warm-up (detectron2 issue: 'FloatingPointError: Loss became infinite or NaN at iteration', own data set).
FAULT at step 94: one annotation was dragged from right to left, x2 < x1; the target log(width / anchor width) is the log of a negative number: NaN.
Without Rangewatch: total_loss 1.66 to 0.18 at step 93, at 94 loss_cls 0.0001 and loss_box_reg nan, from 95 on both.
Cause: data (a box with negative width) / forward_arithmetic. Step: 94. Right: check the boxes (x2 > x1), filter the targets. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [93, 96], "place": None, "rank": None,
          "right": r"(?i)target|box|annotation|label|data|\blog\b|negative|loss", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.set_num_threads(1)
g = torch.Generator().manual_seed(17)
torch.manual_seed(17)
mix = torch.randn(8, 96, generator=g) * 0.4
class_look = torch.randn(4, 96, generator=g)


def get_deltas(src, dst):
    sw, sh = src[:, 2] - src[:, 0], src[:, 3] - src[:, 1]
    tw, th = dst[:, 2] - dst[:, 0], dst[:, 3] - dst[:, 1]
    sx, sy = src[:, 0] + 0.5 * sw, src[:, 1] + 0.5 * sh
    tx, ty = dst[:, 0] + 0.5 * tw, dst[:, 1] + 0.5 * th
    return torch.stack([10 * (tx - sx) / sw, 10 * (ty - sy) / sh, 5 * torch.log(tw / sw), 5 * torch.log(th / sh)], 1)


def proposals(n):
    c = torch.rand(n, 2, generator=g) * 80 + 10
    wh = torch.rand(n, 2, generator=g) * 20 + 10
    gt = torch.cat([c - wh / 2, c + wh / 2], 1)
    prop = gt + torch.randn(n, 4, generator=g) * 1.5
    cls = torch.randint(0, 4, (n,), generator=g)
    feats = torch.cat([gt, prop], 1) / 50 @ mix + class_look[cls] + 0.1 * torch.randn(n, 96, generator=g)
    return feats, prop, gt, cls


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(96, 128), nn.Linear(128, 128)
        self.cls_score = nn.Linear(128, 4)
        self.bbox_pred = nn.Linear(128, 4)

    def forward(self, x):
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        return self.cls_score(x), self.bbox_pred(x)


class Trainer:
    def __init__(self):
        self.model = BoxHead()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.05, 1.0, 30)
        self.handle = rangewatch.attach(self.model, self.optimizer)
        self.iter = 0

    def run_step(self):
        feats, prop, gt, cls = proposals(64)
        if self.iter == 94:
            gt[20] = gt[20][[2, 1, 0, 3]]
        scores, deltas = self.model(feats)
        losses = {"loss_cls": F.cross_entropy(scores, cls), "loss_box_reg": F.smooth_l1_loss(deltas, get_deltas(prop, gt))}
        total = sum(losses.values())
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.handle.log(loss=total.item(), **{k: v.item() for k, v in losses.items()})
        if self.iter % 20 == 0 or 92 < self.iter < 97:
            print(f"iter: {self.iter} total_loss: {total.item():.4f} " + " ".join(f"{k}: {v.item():.4f}" for k, v in losses.items()), flush=True)
        self.iter += 1

    def train(self, max_iter):
        while self.iter < max_iter:
            self.run_step()
        self.handle.detach()


Trainer().train(160)
