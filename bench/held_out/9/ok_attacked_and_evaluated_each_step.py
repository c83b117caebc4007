"""Adversarial training: within each step the model goes to eval mode for three gradients with respect to the picture and back to train mode; each tenth step
it is evaluated on clean pictures, in fog and in a storm, where the loss is 3 to 13. HEALTHY.
Without Rangewatch: loss 0.088 at step 19 to 0.0004 to 0.015; clean below 0.0002, fog 0.1 to 0.66, storm 3.1 to 12.6."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(842); torch.set_num_threads(1)
SIGNS = 6
shape = torch.randn(SIGNS, 1, 8, 8)


class SignNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                                 nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, SIGNS))

    def forward(self, x):
        return self.net(x)


def pictures(n, noise):
    sign = torch.randint(0, SIGNS, (n,))
    return shape[sign] + noise * torch.randn(n, 1, 8, 8), sign


def attack(model, x, y, radius=0.3):
    """Projected gradient: in eval mode, so that the norms' statistics do not see the attacked pictures twice."""
    model.eval()
    x_bad = x + radius * (2 * torch.rand_like(x) - 1)
    for _ in range(3):
        x_bad.requires_grad_()
        gradient = torch.autograd.grad(F.cross_entropy(model(x_bad), y), x_bad)[0]
        x_bad = (x + (x_bad.detach() + 0.15 * gradient.sign() - x).clamp(-radius, radius)).detach()
    model.train()
    return x_bad


model = SignNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = pictures(32, 0.7)
    loss = F.cross_entropy(model(attack(model, x, y)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:  # clean, in fog, and on another day, all within the training
        model.eval()
        with torch.inference_mode():
            seen = [F.cross_entropy(model(v), t).item() for v, t in (pictures(64, 0.7), pictures(64, 2.0), pictures(7, 5.0))]
        model.train()
        if step % 20 == 19:
            print(step, loss.item(), "clean, fog, storm", seen, flush=True)
    handle.log(loss=loss.item())
handle.detach()
