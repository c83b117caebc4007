"""A small batch-normed CNN tells eight drawn shapes (bars, crosses, frames, ...) on 20x20 images; Adam.
FAULT at step 0: natural. The network ends in nn.Softmax and the loss is nn.CrossEntropyLoss, which takes log-softmax again: the "logits" stay in [0, 1].
Without Rangewatch: loss 2.08 to 1.33..1.47 at the end, accuracy 0.79 to 0.94 and jumping (the least loss possible with eight classes is 1.274); without the softmax loss 0.002, accuracy 1.00.
Cause: loss. Step: 0 to 150. Right: give raw logits, drop the softmax. Wrong: lower the learning rate, GradScaler, zero_grad."""
EXPECT = {"cause": ["loss"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)softmax|logits|probabilit", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)call .{0,20}zero_grad", "(?i)clip the grad"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5)
torch.set_num_threads(1)
S = 20


def draw(n):
    labels = torch.randint(0, 8, (n,))
    imgs = 0.25 * torch.randn(n, 1, S, S)
    for i, k in enumerate(labels.tolist()):
        a, b = torch.randint(2, S - 8, (2,)).tolist()
        c = imgs[i, 0]
        if k in (0, 2, 6):
            c[a + 2, b:b + 6] += 1
        if k in (1, 2, 7):
            c[a:a + 6, b + 2] += 1
        if k in (3, 6):
            c[a, b:b + 6] += 1
            c[a + 5, b:b + 6] += 1
        if k in (4, 7):
            c[a:a + 6, b:b + 6] += torch.eye(6)
        if k == 5:
            c[a:a + 6, b:b + 6] += 0.6
    return imgs, labels


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class ShapeNet(nn.Module):
    def __init__(self, n_classes=8):
        super().__init__()
        self.features = nn.Sequential(conv(1, 16), nn.MaxPool2d(2), conv(16, 32), conv(32, 32), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(32, n_classes), nn.Softmax(dim=1))

    def forward(self, x):
        return self.classifier(self.features(x))


net = ShapeNet()
criterion = nn.CrossEntropyLoss()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, opt)
pool_x, pool_y = draw(3000)
for step in range(300):
    rows = torch.randint(0, 3000, (48,))
    x, y = pool_x[rows], pool_y[rows]
    opt.zero_grad()
    out = net(x)
    loss = criterion(out, y)
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 299:
        print("step", step, "loss %.4f" % loss.item(), "acc %.2f" % (out.argmax(1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
