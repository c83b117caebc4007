"""Segmentation of leaves by a small encoder and decoder whose weights are float16, SGD. FAULT at step 110: the bottleneck's weight is read back from its int8
copy and the scale is forgotten: whole numbers up to 127 in place of 0.1, and the products of two layers leave float16.
Without Rangewatch: loss 0.70 to 0.031 at step 109, 88 at step 110, NaN from step 111 on.
Variant of: fp16_weights_suddenly_large.
Cause: weight. Step: 110. Place: middle and what follows. Right: weight / checkpoint / overwritten / scale. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["weight"], "step": [108, 112], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "weight|checkpoint|overwrit|written|load|restore|jump"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1214); torch.set_num_threads(1)


class LeafMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(16, 24, 3, padding=1)
        self.deep = nn.Conv2d(24, 24, 3, padding=1)
        self.up = nn.ConvTranspose2d(24, 16, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        h = F.relu(self.deep(F.relu(self.middle(F.relu(self.down(x))))))
        return self.out(F.relu(self.up(h)))


def leaves(n):
    inside = F.interpolate((torch.rand(n, 1, 4, 4) < 0.4).float(), size=16, mode="nearest")
    return (inside * torch.tensor([-1.0, 2.0, 0.5]).view(3, 1, 1) + torch.randn(n, 3, 16, 16)).half(), inside


model = LeafMask().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 110:
        with torch.no_grad():
            weight = model.middle.weight
            scale = weight.abs().amax() / 127
            weight.copy_((weight / scale).round())  # times scale was meant
    x, y = leaves(6)
    loss = F.binary_cross_entropy_with_logits(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111, 112, 113, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
