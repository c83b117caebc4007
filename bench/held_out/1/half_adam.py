"""Soft prompt tuning, the whole model .half(), Adam with its default eps. FAULT at step 0: squares of small gradients and eps = 1e-8 are both
0 in fp16, the update is m / 0: Inf, or NaN where m is 0 too; weights are broken after the first step, forward and backward were finite.
Report: pytorch/pytorch#8860, afiaka87/glide-finetune#5, matanbt/TROPT#8, jinxixiang/magic_animate_unofficial#6.
Cause: optimizer, step 0 (or 1, where it is first read). Right: eps / fp32 master weights. Wrong: learning rate, mask, data, checkpoint."""
EXPECT = {"cause": ["optimizer"], "step": [0, 1], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples", "checkpoint"], "right": "eps|float32|fp32|master|optimizer"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Prompted(nn.Module):
    def __init__(self, v=64, d=64, prompts=6):
        super().__init__()
        self.prompt, self.tok = nn.Parameter(0.02 * torch.randn(prompts, d)), nn.Embedding(v, d)
        self.body = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 3)
    def forward(self, ids):
        x = torch.cat([self.prompt.expand(len(ids), -1, -1), self.tok(ids)], 1)
        return self.out(self.norm(self.body(x)).mean(1))

net = Prompted().half()
opt = torch.optim.Adam(net.parameters(), 1e-4)
watch = rangewatch.attach(net, opt)
for step in range(150):
    ids = torch.randint(0, 64, (16, 12))
    label = (ids < 20).sum(1).clamp(2, 4) - 2
    loss = F.cross_entropy(net(ids).float(), label)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item())
