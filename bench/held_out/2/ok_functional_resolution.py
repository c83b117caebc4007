"""Progressive resizing with functional code: weights in a ParameterDict, the forward a plain function of them; images of 8, 16 and 32 pixels from steps 0, 90 and
170 on, with more noise each time, and the learning rate warmed up anew. HEALTHY: the loss jumps at each change of size and falls again."""
EXPECT = {"healthy": True}
import math
import torch
import torch.nn.functional as F
import rangewatch

torch.manual_seed(19)
torch.set_num_threads(1)
CLASSES = 6
STAGES = ((0, 8, 0.5, 32), (90, 16, 1.0, 24), (170, 32, 1.5, 12))


def start(o, i, k):
    return torch.nn.Parameter(torch.randn(o, i, k, k) * math.sqrt(2 / (i * k * k)))


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.ParameterDict({
            "k1": start(16, 3, 3), "k2": start(24, 16, 3), "k3": start(32, 24, 3),
            "g1": torch.nn.Parameter(torch.ones(16)), "g2": torch.nn.Parameter(torch.ones(24)), "g3": torch.nn.Parameter(torch.ones(32)),
            "w": torch.nn.Parameter(torch.randn(CLASSES, 512) * 0.02), "b": torch.nn.Parameter(torch.zeros(CLASSES)),
        })

    def forward(self, x):
        for n in "123":
            x = F.conv2d(x, self.p["k" + n], padding=1, stride=2 if n != "1" else 1)
            x = F.relu(F.group_norm(x, 4) * self.p["g" + n][:, None, None] + 0.1)
        return F.linear(F.adaptive_avg_pool2d(x, 4).flatten(1), self.p["w"], self.p["b"])


base = torch.randn(CLASSES, 3, 8, 8)


def images(size, noise, n):
    y = torch.randint(0, CLASSES, (n,))
    x = F.interpolate(base, size=(size, size), mode="bilinear", align_corners=False)[y]
    return x + noise * torch.randn(n, 3, size, size), y


net = Classifier()
opt = torch.optim.RAdam(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, opt)
for step in range(240):
    since, size, noise, n = max(s for s in STAGES if s[0] <= step)
    opt.param_groups[0]["lr"] = 4e-3 * min(1.0, (step - since + 1) / 15)
    x, y = images(size, noise, n)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 15 == 0 or step - since < 3:
        print(step, size, round(loss.item(), 4))
