"""fp16 autocast with a GradScaler; FAULT from step 0: clip_grad_norm_(1.0) is called before unscale_, so that scaled gradients (norm
about 65536) are clipped to 1 and SGD moves by lr/65536: the loss does not fall. Cause: clip (or loss_scale), any step, no place.
Right: unscale before clipping. Wrong: mask, batch, bfloat16 because of overflow, 'vanishing: residual connections'. Info is enough."""
EXPECT = {"cause": ["clip", "loss_scale", "optimizer"], "step": None, "place": None, "rank": None, "least": "info",
          "wrong": ["[Mm]ask", "leave out", "residual"], "right": "unscale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.cats = nn.ModuleList(nn.Embedding(n, 8) for n in (10, 20, 30))
        self.body = nn.Sequential(nn.Linear(30, 64), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 3))
    def forward(self, c, x):
        return self.body(torch.cat([e(c[:, i]) for i, e in enumerate(self.cats)] + [x], 1))

net = Tabular()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=500)
watch = rangewatch.attach(net, opt, scaler=scaler)
score = torch.randn(30, 3)
for step in range(400):
    c = torch.stack([torch.randint(0, n, (64,)) for n in (10, 20, 30)], 1)
    x = torch.randn(64, 6)
    y = (score[c[:, 2]] + x[:, :3]).argmax(1)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(net(c, x).float(), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)      # scaler.unscale_(opt) is missing
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    watch.log(loss=loss.item())
