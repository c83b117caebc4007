"""A patch net in float16 autocast that tells the depth of each pixel from two shifted pictures; the depth was put in kilometres and the loss is a mean over
8192 pixels. FAULT from the start: the GradScaler is fixed at 1/256 (`growth_interval` of a billion): the gradients of activations are below 6e-8, that is 0.
Without Rangewatch: loss 3.3e-5 at step 0 and 2.7e-5 to 5.1e-5 all through; the gradient of the first layer is wholly 0 at each step. With a scale
of 65536 no value of it is 0 and the loss is 8e-7 at the end.
Cause: loss_scale (or the gradients lost in float16, backward_arithmetic). Step: any. Right: scale / underflow. Wrong: lower the rate, clip, mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic"], "step": [0, 180], "place": None, "rank": 0,
          "right": "(?i)scal|underflow|float16|fp16", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2520); torch.set_num_threads(1)


def pairs(n):
    wide = torch.randn(n, 1, 32, 40)
    wide = F.avg_pool2d(wide, 3, 1, 1) * 2
    depth = 0.004 + 0.003 * torch.randn(n, 1, 1, 1).expand(n, 1, 32, 32)
    near = depth > 0.004
    left = wide[..., 4:36]
    right = torch.where(near, wide[..., 2:34], wide[..., 4:36])
    return torch.cat((left, right), 1), torch.where(near, 0.007, 0.001)


class Patches(nn.Module):
    """Depth by patches of 8 by 8 with the surroundings of 12 by 12."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * 144, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.depth = nn.Linear(96, 64)
        with torch.no_grad():
            self.depth.weight.mul_(0.05)
            self.depth.bias.zero_()

    def forward(self, x):
        patch = F.unfold(x, 12, padding=2, stride=8).transpose(1, 2)
        return F.fold(self.depth(self.body(patch)).transpose(1, 2), 32, 8, stride=8)


net = Patches()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-12)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** -8, growth_interval=10 ** 9)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(180):
    x, y = pairs(8)
    with torch.autocast("cpu", torch.float16):
        loss = F.mse_loss(net(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    zero = (net.body[0].weight.grad == 0).float().mean().item()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "share of zeros in the first gradient", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
