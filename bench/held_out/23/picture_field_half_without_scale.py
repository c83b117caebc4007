"""A neural field (position to colour, Fourier features and a deep MLP) fitted to one picture in float16 autocast, as radiance fields are, with Adam's eps of
1e-15. FAULT from step 0 on: no GradScaler; the colour has the weight 0.0001 in the loss and the mean runs over 2048 x 3 values, so the derivatives are at or
below 6e-8, the smallest number of float16: most become exactly 0 and the net hardly learns.
Without Rangewatch: the squared error is 0.250 at step 0, 0.206 at step 20 and 0.206 at step 199; 99 % of the gradients are exactly 0 at step 0,
all of them from step 40 on; in float32 the error is 0.004 at the end.
Causes: loss_scale (no scaler), no_gradient, backward_arithmetic (underflow). Right: scaler / scale / underflow / bfloat16. Wrong: mask, lower the rate."""
EXPECT = {"cause": ["loss_scale", "no_gradient", "backward_arithmetic"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)scal|underflow|bfloat16|float32|precision", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2313); torch.set_num_threads(1)
octaves = 3.1416 * 2.0 ** torch.arange(5)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64 + 20, 64), nn.Linear(64, 64)])
        self.colour = nn.Linear(64, 3)

    def forward(self, place):
        waves = (place[:, :, None] * octaves).flatten(1)
        h = waves = torch.cat((waves.sin(), waves.cos()), 1)
        for i, layer in enumerate(self.hidden):
            h = torch.relu(layer(torch.cat((h, waves), 1) if i == 2 else h))
        return self.colour(h)


def picture(place):
    x, y = place.unbind(1)
    disc = ((x - 0.2) ** 2 + (y + 0.1) ** 2 < 0.25).float()
    return torch.stack((disc, 0.5 + 0.5 * torch.sin(6 * x * y), (x > y).float() * 0.7), 1)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=2e-3, eps=1e-15)
handle = rangewatch.attach(field, optimizer)
for step in range(200):
    place = 2 * torch.rand(2048, 2) - 1
    with torch.autocast("cpu", torch.float16):
        colour = field(place)
    error = (colour.float() - picture(place)).square().mean()
    loss = 0.0001 * error
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        zeros = sum((p.grad == 0).sum().item() for p in field.parameters()) / sum(p.numel() for p in field.parameters())
        print(step, error.item(), "gradients exactly 0", zeros, flush=True)
    handle.log(loss=loss.item())
handle.detach()
