"""A small ResNet for 10 kinds of tiny colour pictures, fp16 autocast and GradScaler, SGD with momentum (a PyTorch forum thread: 'AMP + clip_grad_norm_, network stopped learning').
FAULT at step 0: clip_grad_norm_(1.0) stands between scaler.scale(loss).backward() and scaler.step() without scaler.unscale_(optimizer): the SCALED gradients are cut to norm 1, and the division by 65536 follows.
Without Rangewatch: mean loss 2.38 over the first 20 steps and 2.37 over the last of 200, scale 65536 throughout, weights barely move (with unscale_: 0.29 by step 39, 0.002 at the end).
Cause: clip / loss_scale. Step: from 0. Right: scaler.unscale_(optimizer) before clipping. Wrong: lower the learning rate, clip harder, zero_infinity."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)unscale|clip|max_norm|scaler", "wrong": [r"(?i)lower the learning rate", r"(?i)lower (the )?max_norm|clip harder", r"(?i)zero_infinity"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(4); torch.set_num_threads(1)
device = "cpu"
prototypes = torch.randn(10, 3, 8, 8)


def get_batch(bs=24):
    y = torch.randint(0, 10, (bs,))
    x = prototypes[y] + 0.9 * torch.randn(bs, 3, 8, 8)
    return x.to(device), y.to(device)


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


net = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), BasicBlock(8, 12, 2), BasicBlock(12, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scaler = torch.amp.GradScaler("cpu")
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(net, optimizer)
running = 0.0
for i in range(200):
    images, labels = get_batch()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = net(images)
    loss = criterion(outputs.float(), labels)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    running += loss.item()
    if i % 20 == 19:
        print(f"[{i}] loss: {running / 20:.4f} scale {scaler.get_scale():.0f}", flush=True)
        running = 0.0
handle.detach()
