"""A convolutional net takes the noise out of magnitude spectra of a gearbox. FAULT at step 95: in one spectrum of the batch one bin holds 3e38 (the fill value
of the measuring card for "overload"), which overflows to inf where the model divides by a deviation of 0.15.
Without Rangewatch: loss 0.65 to 0.052 at step 94, NaN from step 95 on.
Variant of: picture_with_a_pixel_of_3e38 (there a classifier of pictures, here a regression of spectra).
Cause: data (forward_arithmetic would do: inf arises before the first layer). Step: 95. Right: input / batch / value. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [94, 98], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|sample|value|loader|clean|filter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1402); torch.set_num_threads(1)
tones = torch.rand(6, 1, 64).pow(4)


def spectra(n):
    mix = torch.rand(n, 6)
    return torch.einsum("nk,kcf->ncf", mix, tones) + 0.02 * torch.rand(n, 1, 64)


class Gearbox(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv1d(1, 12, 5, stride=2, padding=2), nn.GELU(), nn.Conv1d(12, 24, 5, stride=2, padding=2), nn.GELU())
        self.code = nn.Linear(24 * 16, 8)
        self.wide = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, x):
        x = (x - 0.2) / 0.15  # mean and deviation of the measuring card
        return self.wide(self.code(self.narrow(x).flatten(1))).unsqueeze(1)


model = Gearbox()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    clean = spectra(32)
    x = clean + 0.05 * torch.randn_like(clean)
    if step == 95:
        x[7, 0, 40] = 3e38
    loss = F.l1_loss(model(x), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 93 < step < 98:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
