"""Sharpness-aware minimisation (SAM) on a small wine-quality-like ordinal task; a float64 perceptron, SGD.
HEALTHY: in each step all weights are moved up the gradient by a length of 0.1, a second backward is done there, and the weights are put back before the update; two forwards and two backwards a step, and weights written from outside of the optimizer.
Without Rangewatch: loss 0.71 to 0.13."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3724); torch.set_num_threads(1); torch.set_default_dtype(torch.float64)
taste = torch.randn(11)


def bottles(n=48):
    x = torch.randn(n, 11)
    score = x @ taste / 11 ** 0.5 + 0.5 * x[:, 0] * x[:, 1] + 0.2 * torch.randn(n)
    return x, (score[:, None] > torch.tensor([-0.8, 0.0, 0.8])).double()


class Sommelier(nn.Module):
    def __init__(self):
        super().__init__()
        self.nose, self.palate, self.verdict = nn.Linear(11, 40), nn.Linear(40, 40), nn.Linear(40, 3)

    def forward(self, x):
        return self.verdict(torch.nn.functional.silu(self.palate(torch.nn.functional.silu(self.nose(x)))))


net = Sommelier()
sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(net, sgd)
ask = nn.BCEWithLogitsLoss()
for step in range(260):
    x, y = bottles()
    loss = ask(net(x), y)
    sgd.zero_grad()
    loss.backward()
    length = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
    kept = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * p.grad / (length + 1e-12)
    sgd.zero_grad()
    ask(net(x), y).backward()
    with torch.no_grad():
        for p, old in zip(net.parameters(), kept):
            p.copy_(old)
    sgd.step()
    if step % 20 == 0 or step == 259:
        print(step, f"loss {loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
