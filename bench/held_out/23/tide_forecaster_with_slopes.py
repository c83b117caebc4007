"""A causal transformer on tide gauges; its attention has the slopes of ALiBi and -inf above the diagonal, as it should. FAULT at step 110: the second stage
of the training sets the rate of SGD to 3.0 in place of 0.03; the gradients explode within a few steps. The mask is right.
Without Rangewatch: loss 0.53 to 0.019 at step 110, 7.4 at step 111, 6e28 at step 112, NaN from step 113 on.
Causes: learning_rate. Right: learning rate. Wrong: the mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [109, 116], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["(?i)mask", "GradScaler"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(2311); torch.set_num_threads(1)
LENGTH, HEADS = 24, 4
distance = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
slopes = 2.0 ** -(2.0 * torch.arange(1, HEADS + 1))
alibi = (slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)


class Layer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.qkv, self.mix = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        a = (q @ k.mT / q.shape[-1] ** 0.5 + alibi).softmax(-1) @ v
        x = x + self.mix(a.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


model = nn.Sequential(nn.Linear(1, 32), Layer(), Layer(), Layer(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    if step == 110:
        optimizer.param_groups[0]["lr"] = 3.0
    t = torch.arange(LENGTH + 1.0) + 12 * torch.rand(32, 1)
    tide = torch.sin(t * 0.506) + torch.rand(32, 1) * torch.sin(t * 0.523 + 6 * torch.rand(32, 1))
    loss = (model(tide[:, :-1, None])[..., 0] - tide[:, 1:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 118:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
