"""A small hourglass net finds the brightest blob's place in 24x24 pictures by heat maps (soft argmax), ASGD, float32.
FAULT at step 125: a "pruning" hook divides the second down kernel by its own mask's mean over the outputs and writes it back; one kernel's mask is empty, 0/0, so one output channel of `down2` becomes NaN.
Without Rangewatch: loss 0.28 to 0.0024 at step 124, NaN from step 125 on (the gradients of that step make NaN of the whole of down2).
Cause: weight. Step: 125. Right: the weight of down2 / who wrote it. Wrong: lower the learning rate, GradScaler, NaN in the data."""
EXPECT = {"cause": ["weight"], "step": [124, 128], "place": r"down2(\.weight)?", "rank": None,
          "right": r"(?i)weight|parameter|wrote|written|checkpoint|prun", "wrong": ["[Ll]ower the learning rate", "GradScaler", "[Mm]issing values"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2424)
torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")


def scenes(n):
    at = 1.4 * torch.rand(n, 3, 2) - 0.7
    power = torch.tensor([1.0, 0.5, 0.4])
    blobs = torch.exp(-((xx - at[..., 0, None, None]) ** 2 + (yy - at[..., 1, None, None]) ** 2) / 0.02)
    return ((power[:, None, None] * blobs).sum(1) + 0.1 * torch.randn(n, 24, 24))[:, None], at[:, 0]


class Hourglass(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.heat = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.up(F.relu(self.down2(a))))
        heat = F.interpolate(self.heat(torch.cat([a, b], 1)), 24, mode="bilinear")
        p = (10 * heat).flatten(1).softmax(1).view(-1, 24, 24)
        return torch.stack([(p * xx).sum((1, 2)), (p * yy).sum((1, 2))], 1)


def rescale_pruned(weight, part):
    keep = weight.abs() >= part
    share = keep.float().mean((1, 2, 3), keepdim=True)
    weight.copy_(weight * keep / (share / share.max()))


net = Hourglass()
opt = torch.optim.ASGD(net.parameters(), lr=0.1)
handle = rangewatch.attach(net, opt)
for step in range(190):
    if step == 125:
        with torch.no_grad():
            net.down2.weight[11].mul_(0.05)   # the channel that the sparsity penalty has almost removed
            rescale_pruned(net.down2.weight, 0.01)
    x, place = scenes(24)
    loss = (net(x) - place).square().sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or 123 < step < 128:
        print(step, f"loss {loss.item():.4f} NaN in down2 {int(net.down2.weight.isnan().sum())}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
