"""Two tasks with uncertainty weights (Kendall). Missing depth annotations are NaN and are multiplied by a 0/1 weight: FAULT from
step 100, when the first such rows come: NaN * 0 = NaN in the loss. The model's input is finite. Cause: data (targets NaN), in the loss
(forward_arithmetic accepted), step 100, place loss. Right: targets/labels of that batch. Wrong: learning rate, attention mask, weights."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [100, 100], "place": r"(loss|\(loss\)|)", "rank": 0,
          "wrong": ["learning rate", "whole rows", "checkpoint", "GradScaler", "bfloat16"], "right": "target|label|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class MultiTask(nn.Module):
    def __init__(self, d=16, h=64):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(d, h), nn.LayerNorm(h), nn.GELU(), nn.Linear(h, h), nn.GELU())
        self.segment, self.depth = nn.Linear(h, 4), nn.Linear(h, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        h = self.shared(x)
        return self.segment(h), self.depth(h).squeeze(1)

model = MultiTask()
opt = torch.optim.AdamW([{"params": [p for n, p in model.named_parameters() if n != "log_vars"]},
                         {"params": [model.log_vars], "weight_decay": 0.0, "lr": 5e-3}], lr=2e-3)
watch = rangewatch.attach(model, opt)
W = torch.randn(16, 4)
for step in range(200):
    x = torch.randn(64, 16)
    label, depth = (x @ W).argmax(1), x[:, 0].abs() + 0.1 * torch.randn(64)
    if step >= 100:
        depth = depth.masked_fill(torch.rand(64) < 0.1, float("nan"))
    known = (~depth.isnan()).float()
    logits, d = model(x)
    l_seg = F.cross_entropy(logits, label)
    l_dep = (known * (d - depth) ** 2).sum() / known.sum()
    prec = torch.exp(-model.log_vars)
    loss = prec[0] * l_seg + prec[1] * l_dep + model.log_vars.sum()
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=float(loss), seg=float(l_seg), depth=float(l_dep))
