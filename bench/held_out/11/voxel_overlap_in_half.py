"""A small 3d convolutional net that marks bone in volumes; its loss is one minus the overlap over the whole batch, in float16 "to save memory". FAULT at step
100: the volumes grow from 12 to 22 voxels a side; the sum of what is marked and what is bone is above 65504, inf in float16, and overlap / inf is 0.
Without Rangewatch: loss 0.45 to 0.29 at step 99; exactly 1.0 from step 100 on, with a gradient of exactly 0; nothing is NaN.
Variant of: quiet: overlap_of_large_pictures_is_summed_in_float16.
Cause: forward_arithmetic (overflow in float16) or no_gradient. Step: 100. Right: float16 / float32 / overflow / zero gradient / loss. Wrong: rate, mask."""
EXPECT = {"cause": ["forward_arithmetic", "no_gradient"], "step": [99, 103], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "[Cc]lip the grad"],
          "right": "float16|half|float32|overflow|65504|loss|constant|saturat"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1120); torch.set_num_threads(1)


class BoneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv3d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv3d(6, 6, 1), nn.ReLU())
        self.bone = nn.Conv3d(6, 1, 1)

    def forward(self, x):
        return torch.sigmoid(self.bone(self.see(x)))


def volumes(n, side):
    rough = F.interpolate(torch.randn(n, 1, 4, 4, 4), size=(side,) * 3, mode="trilinear")
    bone = (rough > 0).float()
    return bone + 0.8 * torch.randn(n, 1, side, side, side), bone


def one_minus_overlap(p, y):
    p, y = p.half(), y.half()
    return 1 - 2 * ((p * y).sum() / (p.sum() + y.sum()))


model = BoneNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, y = volumes(8, 12 if step < 100 else 22)
    p = model(x)
    loss = one_minus_overlap(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), "gradient", model.bone.weight.grad.norm().item(), "marked and bone", (p.sum() + y.sum()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
