"""A convolutional recurrent net that foresees the next radar frame of rain. FAULT at step 88: one frame of one film has a NaN pixel; nothing looks at it
before the net does.
Without Rangewatch: loss 0.022 to 0.0047 at step 87; NaN at step 88 and at each step after it.
Variant of: batches: nan_in_a_picture_of_a_diffusion.
Cause: data. Step: 88. Right: batch / input / data / sample. Wrong: rate, GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [87, 89], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "batch|input|data|sample|row"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1104); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"))


class RainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Conv2d(1 + 12, 24, 3, padding=1)
        self.new = nn.Conv2d(1 + 12, 12, 3, padding=1)
        self.next = nn.Conv2d(12, 1, 3, padding=1)

    def forward(self, film):
        h = film.new_zeros(film.shape[0], 12, 12, 12)
        for frame in film.unbind(1):
            update, keep = torch.sigmoid(self.gates(torch.cat((frame[:, None], h), 1))).chunk(2, 1)
            h = (1 - update) * h + update * torch.tanh(self.new(torch.cat((frame[:, None], keep * h), 1)))
        return self.next(h)[:, 0]


def films(n):
    at, wind = 3 + 6 * torch.rand(n, 1, 2), torch.randn(n, 1, 2)
    at = at + wind * torch.arange(5.0)[:, None]
    far = (grid - at[..., None, None]).square().sum(2)
    rain = torch.exp(-far / 4) + 0.02 * torch.randn(n, 5, 12, 12)
    return rain[:, :4], rain[:, 4]


model = RainNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = films(12)
    if step == 88:
        x[7, 2, 4, 9] = float("nan")  # 0 / 0 in the preparation of a frame
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 86 < step < 91:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
