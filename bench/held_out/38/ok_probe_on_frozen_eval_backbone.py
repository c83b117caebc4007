"""A linear probe on a frozen random conv backbone with batch norm: the backbone is in eval mode and without gradients on purpose (`requires_grad_(False)`, `.eval()`, no_grad), only `probe` trains; SGD with Nesterov.
HEALTHY: most modules are in eval mode and most parameters have no gradient, from the first step to the last; that is what a probe is.
Without Rangewatch: loss 1.14 to 0.0077, all right from step 30 on."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(71); torch.set_num_threads(1)


def stripes(n):
    y = torch.randint(0, 3, (n,))
    phase = 6.28 * torch.rand(n, 1, 1)
    i = torch.arange(14.0)
    across = torch.stack([i[:, None] + 0 * i, 0 * i[:, None] + i, i[:, None] + i])[y] * 1.3
    return (torch.sin(across + phase) + 0.4 * torch.randn(n, 14, 14))[:, None], y


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for _ in range(30):
            self.backbone(stripes(32)[0])
        self.backbone.requires_grad_(False)
        self.probe = nn.Linear(32, 3)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x)
        return self.probe(h)


net = Probe().train()
opt = torch.optim.SGD(net.probe.parameters(), lr=0.3, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, opt)
for step in range(240):
    x, y = stripes(48)
    out = net(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 239:
        print(step, f"loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
