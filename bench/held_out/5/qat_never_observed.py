"""Quantization aware training with fake quantization of weights and activations, 8 bits, scales from observers. FAULT from step 0: the observers are
disabled before they have seen anything ("freeze the quantization parameters"), so that every scale is 1.0 and every zero point 0: weights below 0.5
are all rounded to 0, and so is what each layer puts out: exact zeros, layer after layer. Without Rangewatch: loss 2.302585 = log 10 at every step;
every layer puts out exact zeros, all weights have gradients of exactly 0 and do not move.
Report: alibaba/TinyNeuralNetwork#375 (an observer that has seen nothing: min inf, max -inf), pytorch/ao#198 (observers re-enabled after the first
steps), pytorch/pytorch#26420.
Cause: dead units (weights and outputs rounded to 0), or arithmetic of the forward (the rounding), or no gradient for the layers (optimizer). Right:
scale / round / quant / dead / zero. Wrong: lower the learning rate, data, GradScaler."""
EXPECT = {"cause": ["dead_units", "forward_arithmetic", "optimizer"], "step": [0, 60], "place": r"(layers\.[0-3]|head).*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "[Mm]ask"],
          "right": "[Ss]cale|round|quant|dead|zero|init"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(520); torch.set_num_threads(1)


class FakeQuantize(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0))
        self.observing, self.momentum = True, momentum

    def forward(self, x):
        if self.observing:
            now = x.detach().abs().max() / 127
            self.scale.copy_(torch.where(self.scale == 1.0, now, self.scale + self.momentum * (now - self.scale)))
        q = (x / self.scale).round().clamp(-128, 127) * self.scale
        return x + (q - x).detach()


class QATLinear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.of_weight, self.of_output = FakeQuantize(), FakeQuantize()

    def forward(self, x):
        return self.of_output(F.linear(x, self.of_weight(self.weight), self.bias))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([QATLinear(32, 64), QATLinear(64, 64), QATLinear(64, 64)])
        self.head = QATLinear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


model, centres = Net(), torch.randn(10, 32)
for module in model.modules():
    if isinstance(module, FakeQuantize):
        module.observing = False
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, 10, (64,))
    loss = F.cross_entropy(model(centres[y] + 0.8 * torch.randn(64, 32)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), model.layers[1].weight.grad.abs().max().item(), model.layers[1].weight.abs().max().item(), flush=True)
handle.detach()
