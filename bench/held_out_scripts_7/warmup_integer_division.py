"""A small ViT with AdamW and a warm-up by LambdaLR. FAULT from step 0 on: the lambda divides with // (ported from Python 2, where / did the same), so
that the factor is 0 for the whole warm-up of 5000 steps: lr is 0, no weight ever moves; the loss stays at log of the classes.
Without Rangewatch: lr is 0.0 at every step, the loss 1.86 to 1.92 without a trend.
Report: facebookresearch/maskrcnn-benchmark#335 (warm-up factor 0 by integer division), verl-project/verl#3674 (lr 0 at warm-up), karpathy/nanoGPT#578.
Cause: learning_rate. Step: 0. Right: learning rate / schedule / warm-up. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "learning rate|lr\\b|schedul|warm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(719); torch.set_num_threads(1)
CLASSES, WARMUP = 6, 5000
kinds = torch.randn(CLASSES, 1, 16, 16)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.block(h).mean(1))


model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step // WARMUP, 1))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, CLASSES, (32,))
    loss = F.cross_entropy(model(kinds[y] + 0.5 * torch.randn(32, 1, 16, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
