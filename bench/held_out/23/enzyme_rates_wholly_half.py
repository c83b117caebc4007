"""A net with a learned temperature curve that tells the speed of enzymes, wholly in float16 (weights, too). FAULT from step 0 on: the speeds are in mol per
litre and second, about 1e-5; the squares of the errors and their derivatives (mean over 1024 rows) are below 6e-8: the loss and most gradients are exactly 0.
Without Rangewatch: the loss is exactly 0 at each step, 97 to 100 % of the gradients are exactly 0, the relative error is 0.51 at the end; in float32
with speeds times 1e5 it is 0.06.
Causes: loss_scale, backward_arithmetic (underflow), data (the units), no_gradient, forward_arithmetic (squares of 0). Right: float16 / underflow / scale /
target / float32. Wrong: mask, lower the rate."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "data", "no_gradient", "forward_arithmetic"], "step": [0, 219], "place": None, "rank": 0,
          "right": "(?i)float16|fp16|half|underflow|scal|target|float32|bfloat16|precision", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2322); torch.set_num_threads(1)


class Enzyme(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.EmbeddingBag(20, 24, mode="sum")
        self.warm = nn.Linear(3, 24)
        self.speed = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))
        nn.init.zeros_(self.speed[2].weight)
        nn.init.zeros_(self.speed[2].bias)

    def forward(self, kind, bath):
        return self.speed(self.kind(kind) + self.warm(bath))[:, 0]


model = Enzyme().half()
effect = torch.rand(20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    kind, bath = torch.randint(0, 20, (1024, 4)), torch.rand(1024, 3)
    speed = 1e-5 * effect[kind].mean(1) * (1 + bath[:, 0]) / (0.5 + bath[:, 1])
    out = model(kind, bath.half())
    loss = nn.functional.mse_loss(out, speed.half())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        zeros = sum((p.grad == 0).sum().item() for p in model.parameters()) / sum(p.numel() for p in model.parameters())
        print(step, "loss", loss.item(), "relative error", ((out.float() - speed).abs().mean() / speed.mean()).item(), "gradients exactly 0", zeros, flush=True)
    handle.log(loss=loss.item())
handle.detach()
