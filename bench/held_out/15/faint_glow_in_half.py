"""A net that draws the faint glow of a lamp (at most 0.004) on 2048 pixels; float16 autocast and no GradScaler. FAULT from the start: the gradient of a pixel
is below 6e-8, which is zero in float16.
Without Rangewatch: loss 2.9e-6 to 7.0e-7 from step 100 to the end; all gradients of the first weight are zero, 94 to 99.9 % of those of the last from
step 20 on; in float32 the loss is 5.8e-8 at the end.
Cause: loss_scale (underflow). Step: 0. Right: underflow / GradScaler / float16. Wrong: lower the learning rate, mask, overflow."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "overflow"],
          "right": "underflow|GradScaler|loss scal|float16|fp16|half|target|scale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1525); torch.set_num_threads(1)
PIXELS = 2048


class Glow(nn.Module):
    """The faint glow of a lamp behind fog, 32 by 64 pixels, from eight readings of its place; float16 autocast."""
    def __init__(self):
        super().__init__()
        self.place = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.picture = nn.Linear(64, PIXELS)
        with torch.no_grad():
            self.picture.weight.mul_(0.02), self.picture.bias.zero_()

    def forward(self, x):
        return self.picture(self.place(x))


rows, columns = torch.arange(PIXELS) // 64 / 32, torch.arange(PIXELS) % 64 / 64
mix = torch.randn(2, 8)


def lamps(n):
    p = torch.rand(n, 2)
    far = (rows - p[:, :1]) ** 2 + (columns - p[:, 1:]) ** 2
    return torch.tanh((p * 4 - 2) @ mix) + 0.02 * torch.randn(n, 8), 0.004 * torch.exp(-20 * far)


model = Glow()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, eps=1e-14)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = lamps(64)
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        zeros = [round((p.grad == 0).float().mean().item(), 3) for n, p in model.named_parameters() if n.endswith("weight")]
        print(step, loss.item(), "zeros in the gradients", zeros, flush=True)
    handle.log(loss=loss.item())
handle.detach()
