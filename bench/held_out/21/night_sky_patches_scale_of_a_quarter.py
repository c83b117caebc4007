"""A net of linear layers in float16 autocast that cleans patches of faint pictures of the night sky; the gradients are scaled by a GradScaler that is frozen
(growth_interval beyond the run) at 1/4. FAULT at step 0: the mean over 256 * 64 pixels of small differences gives gradients of activations about 6e-8 and
below, which float16 rounds to 0.
Without Rangewatch: all gradients of the first three layers are 0 (those of the last one to a fifth) at each step; loss 5.6e-6 to 2.4e-6 by the last layer alone; with a
scale of 65536 there are no zeros and the loss is 1.1e-6 at the end.
Cause: loss_scale (too low), backward_arithmetic (underflow) or no_gradient. Step: 0 to the end, a state. Right: scale / underflow / float16. Wrong: lower
the learning rate, lower the scale, mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)scale|underflow|float16|fp16|half", "wrong": ["[Ll]ower the learning rate", "[Ll]ower the (initial |loss )?scale", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2118)
torch.set_num_threads(1)


class Cleaner(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.one, self.two, self.leave = nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 96), nn.Linear(96, 64)

    def forward(self, x):
        h = F.gelu(self.enter(x))
        h = h + F.gelu(self.two(F.gelu(self.one(h))))
        return self.leave(h)


def skies(n):
    stars = (torch.rand(n, 1, 8, 8) < 0.06) * torch.rand(n, 1, 8, 8)
    glow = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])[None, None] / 4
    clean = 0.01 * F.conv2d(stars, glow, padding=1).flatten(1)
    plate = 2.0 * (torch.rand(n, 1) < 0.5) - 1  # a positive or a negative
    return 100 * plate * (clean + 0.001 * torch.randn_like(clean)), clean


model = Cleaner()
with torch.no_grad():  # the brightness is small, the net begins near it
    model.leave.weight *= 0.02
    model.leave.bias.zero_()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, eps=1e-16)  # the loss is of the order of 1e-6
scaler = torch.amp.GradScaler("cpu", init_scale=0.25, growth_interval=10 ** 9)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, y = skies(256)
    with torch.autocast("cpu", dtype=torch.float16):
        clean = model(x)
    loss = F.mse_loss(clean.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    zeros = [(p.grad == 0).float().mean().item() for p in (model.enter.weight, model.one.weight, model.two.weight, model.leave.weight)]
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "share of zeros in the gradients", *(round(z, 3) for z in zeros), flush=True)
    handle.log(loss=loss.item())
handle.detach()
