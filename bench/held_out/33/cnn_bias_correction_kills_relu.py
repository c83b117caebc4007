"""A convnet finds which of four marks an image bears (SGD with momentum). FAULT at step 120: a "bias correction" takes the mean response of the second convolution off its bias, but the mean
was collected in units of 8-bit pixels (times 255): the bias of `features.3` is near -390 in all channels, the ReLU behind it never fires again and nothing before it has a gradient.
Without Rangewatch: loss 1.41 to 0.18 at step 119; 1.5 and then 1.39 (the guess of one of four) from step 120 to the end.
Cause: dead_units (weight: the bias). Step: 120. Right: ReLU / dead / bias. Wrong: GradScaler, attention mask, labels."""
EXPECT = {"cause": ["dead_units", "weight"], "step": [119, 130], "place": r"features(\.[0-5](\..*)?)?|out.*", "rank": None,
          "right": "(?i)dead|relu|bias|fire|weight|never active", "wrong": ["GradScaler", "attention mask", "[Ll]abels"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3316); torch.set_num_threads(1)
marks = torch.randn(4, 5, 5).sign()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        return self.out(self.features(x))


def images(n):
    y = torch.randint(0, 4, (n,))
    x = 0.3 * torch.randn(n, 1, 14, 14)
    for k, (r, c) in enumerate(torch.randint(0, 10, (n, 2)).tolist()):
        x[k, 0, r:r + 5, c:c + 5] += marks[y[k]]
    return x, y


@torch.no_grad()
def correct_bias(net, sample):
    conv = net.features[3]
    response = net.features[:4](sample * 255).abs().mean((0, 2, 3))
    conv.bias -= response


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = images(32)
    if step == 120:
        correct_bias(net, x)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 123 or step == 199:
        print(step, loss.item(), "bias", net.features[3].bias.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
