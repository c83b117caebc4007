"""A patch-wise segmenter in fp16 autocast with GradScaler that finds discs in noisy pictures, SGD. FAULT from the start: clip_grad_norm_ is called on the scaled gradients,
without scaler.unscale_ before it: with a scale of 65536 the norm of 1 that stays is 1/65536 after the unscale, and the net hardly moves.
Without Rangewatch: loss 0.706 to 0.702; norm of the scaled gradients 22000 to 28000, scale 65536 throughout.
Cause: clip (loss_scale). Step: 0. Right: unscale_ before clip. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 60], "place": None, "rank": None,
          "right": "(?i)unscale|clip", "wrong": ["[Ll]ower the learning rate", "attention mask", "(?i)log of (0|zero)"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(208); torch.set_num_threads(1)


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Unfold(5, padding=2)
        self.lift, self.mix, self.mask = nn.Linear(25, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        h = self.patch(x).transpose(1, 2)
        return self.mask(F.relu(self.mix(F.relu(self.lift(h))))).view_as(x)


yy, xx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")


def discs(n):
    c, r = 2 + 8 * torch.rand(n, 2, 1, 1), 2 + 1.5 * torch.rand(n, 1, 1)
    m = (((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2) < r * r).float()
    return (m + 0.6 * torch.randn(n, 12, 12))[:, None], m[:, None]


net = PatchNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(160):
    x, m = discs(4)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = F.binary_cross_entropy_with_logits(out.float(), m)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    total = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 159:
        print(step, loss.item(), "norm", total.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
