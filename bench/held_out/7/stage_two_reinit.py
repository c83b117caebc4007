"""Segmentation in two stages: 140 steps with the first head, then the second head is switched on. FAULT at step 140: the runner calls init_weights,
which is applied to every submodule, so that the trained backbone is drawn anew as well: the loss leaps back to where it was at the start.
Without Rangewatch: loss 1.63 to 0.47 at step 139, 1.609 (log of 5) at step 140, 1.25 at step 220; std of the first convolution 0.258, then 0.010.
Report: zshn25/DINOv2_mmseg#1 (runner calls init_weights, overrides the pretrained weights), ImCharlesY/AdaInt#12, open-mmlab/mmdetection#9056.
Cause: weight. Step: 140. Right: weights / initialise / overwritten / load. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["weight"], "step": [138, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "weight|initiali|overwrit|checkpoint|load|reset|parameter|jump"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(720); torch.set_num_threads(1)
CLASSES = 5
texture = torch.randn(CLASSES, 3)


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
                                      nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
        self.coarse = nn.Conv2d(24, CLASSES, 1)
        self.fine = nn.Conv2d(24, CLASSES, 3, padding=1)

    def init_weights(self):
        for m in self.modules():  # meant for the new head only
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, std=0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x, fine):
        h = self.backbone(x)
        return self.coarse(h) + (self.fine(h) if fine else 0.0)


def load(n=8):
    y = torch.randint(0, CLASSES, (n, 4, 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    return texture[y].permute(0, 3, 1, 2) + 0.8 * torch.randn(n, 3, 16, 16), y


model = Segmenter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 140:
        model.init_weights()
    x, y = load()
    loss = F.cross_entropy(model(x, fine=step >= 140), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 144:
        print(step, loss.item(), model.backbone[0].weight.std().item(), flush=True)
handle.detach()
