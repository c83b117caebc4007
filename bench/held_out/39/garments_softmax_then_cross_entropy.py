"""Ten kinds of striped cloth swatches (16x16 greyscale) are told apart by a small VGG-like net, SGD with Nesterov momentum.
FAULT at step 0: the classifier ends in nn.Softmax and its probabilities go into nn.CrossEntropyLoss, which takes its own log-softmax: a double softmax.
Without Rangewatch: loss 2.30 to 1.6-1.7 and never under 1.46, accuracy 0.75 to 0.9 (without the softmax: loss 0.006 and accuracy 1.00 at step 50).
Cause: forward_arithmetic. Step: from 0 (it is there from the start; it shows as a loss that cannot fall below 1.46 and weak gradients).
Right: hand logits to the loss, drop the softmax. Wrong: lower the learning rate, GradScaler, clip the gradients."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)softmax|logit|probabilit", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(11)
torch.set_num_threads(1)
CLASSES, SIDE = 10, 16
yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")


def make_swatches(n):
    label = torch.randint(0, CLASSES, (n,))
    angle = (label * math.pi / CLASSES)[:, None, None]
    phase = 2 * math.pi * torch.rand(n, 1, 1)
    img = torch.sin(1.1 * (xx * angle.cos() + yy * angle.sin()) + phase) + 0.5 * torch.randn(n, SIDE, SIDE)
    return img.unsqueeze(1), label


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True), nn.MaxPool2d(2))


class SwatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(block(1, 16), block(16, 32))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, CLASSES), nn.Softmax(dim=1))

    def forward(self, x):
        return self.classifier(self.features(x))


net = SwatchNet()
criterion = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
handle = rangewatch.attach(net, sgd)
images, labels = make_swatches(3200)
for it in range(300):
    pick = torch.randint(0, len(labels), (48,))
    sgd.zero_grad()
    out = net(images[pick])
    loss = criterion(out, labels[pick])
    loss.backward()
    sgd.step()
    if it % 25 == 0 or it == 299:
        acc = (out.argmax(1) == labels[pick]).float().mean().item()
        print(f"iter {it:4d}  loss {loss.item():.4f}  acc {acc:.2f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
