"""Siamese net with a contrastive loss, SGD. FAULT from step 100: zero_grad is only called in the branch of the first phase: gradients add up
from step to step. They grow steadily; the loss rises later. Cause: backward_arithmetic/optimizer/none: 'gradients grow', no false claim.
Step 100..200. Right: clip/learning rate/accumulate. Wrong: mask, leave out batches, checkpoint weights, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "optimizer", "learning_rate", "(none)"], "step": [100, 240], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "tensors of the checkpoint", "GradScaler"], "right": "zero_grad|accumul|[Cc]lip|learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
tower = nn.Sequential(nn.Linear(22, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 10))
opt = torch.optim.SGD(tower.parameters(), lr=0.05)
watch = rangewatch.attach(tower, opt)
protos = torch.randn(9, 22)
for step in range(260):
    y1, y2 = torch.randint(0, 9, (48,)), torch.randint(0, 9, (48,))
    y2 = torch.where(torch.rand(48) < 0.5, y1, y2)
    d2 = (tower(protos[y1] + torch.randn(48, 22)) - tower(protos[y2] + torch.randn(48, 22))).pow(2).sum(1)
    same = (y1 == y2).float()
    loss = (same * d2 + (1 - same) * F.relu(2 - (d2 + 1e-6).sqrt()).pow(2)).mean()
    if step < 100:
        opt.zero_grad()
    loss.backward()
    opt.step()
    watch.log(loss=loss.item())
