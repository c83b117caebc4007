"""Contrastive two-tower model (InfoNCE) with a learned logit scale, not clamped. FAULT at step 120: the parameter group of logit_scale
gets a learning rate of 60 (a schedule for the wrong group): exp overflows within a few steps. Cause: learning_rate (exp overflow in the
forward is how), step 120..124. Right: learning rate (of logit_scale) or clamp the exponent. Wrong: batch, mask, checkpoint weights."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic"], "step": [120, 125], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out samples", "GradScaler"], "right": "learning rate|clamp|exp|logit_scale"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class TwoTower(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, d, bias=False))
        self.text = nn.Sequential(nn.EmbeddingBag(100, 64), nn.GELU(), nn.Linear(64, d, bias=False))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    def forward(self, pix, ids):
        a, b = F.normalize(self.image(pix), dim=-1), F.normalize(self.text(ids), dim=-1)
        return self.logit_scale.exp() * a @ b.t()

model = TwoTower()
towers = [p for n, p in model.named_parameters() if n != "logit_scale"]
opt = torch.optim.AdamW([{"params": towers, "lr": 1e-3, "weight_decay": 0.01}, {"params": [model.logit_scale], "lr": 1e-3, "weight_decay": 0.0}])
watch = rangewatch.attach(model, opt)
proj = torch.randn(100, 24)
for step in range(200):
    if step == 120:
        opt.param_groups[1]["lr"] = 60.0
    ids = torch.randint(0, 100, (48, 4))
    pix = proj[ids].mean(1) + 0.2 * torch.randn(48, 24)
    logits, want = model(pix, ids), torch.arange(48)
    loss = 0.5 * (F.cross_entropy(logits, want) + F.cross_entropy(logits.t(), want))
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item(), scale=model.logit_scale.item())
