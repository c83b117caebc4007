"""A deblurring net for microscope tiles that multiplies its input with a gain; beside the squares an edge loss, sqrt(dx^2 + dy^2) of the output, is
compared. FAULT at step 122: a tile of the batch is black, the gradient of the root at 0 is inf, times 0 is NaN. The loss of that step is finite.
Without Rangewatch: loss 0.072 to 0.031 at step 121, 0.033 at step 122, NaN from step 123 on; the same without the edge loss trains on.
Variant of: root_of_zero_in_the_backward.
Cause: backward_arithmetic. Step: 122. Right: sqrt / root / eps / zero. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [121, 123], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|root|eps|norm|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1202); torch.set_num_threads(1)
blur = torch.ones(1, 1, 3, 3) / 9


class Deblur(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.gain = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        return x * (1 + self.gain(self.look(x)))


def edges(x):
    dx, dy = x[..., 1:, 1:] - x[..., 1:, :-1], x[..., 1:, 1:] - x[..., :-1, 1:]
    return (dx.square() + dy.square()).sqrt()


def tiles(step):
    cells = F.interpolate(torch.rand(16, 1, 4, 4), size=16, mode="nearest") + 0.1 * torch.rand(16, 1, 16, 16)
    if step == 122:
        cells[9] = 0.0  # beside the specimen
    return F.conv2d(cells, blur, padding=1), cells


model = Deblur()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    blurred, sharp = tiles(step)
    out = model(blurred)
    loss = F.mse_loss(out, sharp) + 0.3 * (edges(out) - edges(sharp)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (121, 122, 123, 229):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
