"""A 1d U-Net that takes the noise off heartbeats. FAULT from the start: it gives (batch, 1, time), the clean beats are (batch, time); the difference is
broadcast to (batch, batch, time), each output is compared with each beat, and the net learns the mean beat.
Without Rangewatch: loss 0.64 to 0.43 at step 40, where it stays; each output against its own beat 0.23 at the end, 0.007 with the right
shape. (PyTorch warns once of the shapes at step 0.)
Variant of: shapes: maps_of_one_channel_against_maps_of_none.
Cause: data or forward_arithmetic (shapes that broadcast in the loss). Step: 0. Right: shape / broadcast / squeeze / channel. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 60], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "shape|broadcast|squeeze|channel|dimension"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1128); torch.set_num_threads(1)
time = torch.arange(64.0)


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv1d(1, 16, 7, padding=3), nn.Conv1d(16, 32, 7, padding=3)
        self.up, self.clean = nn.Conv1d(48, 16, 7, padding=3), nn.Conv1d(16, 1, 1)

    def forward(self, x):
        fine = F.silu(self.down1(x))
        coarse = F.silu(self.down2(F.max_pool1d(fine, 2)))
        return self.clean(F.silu(self.up(torch.cat((fine, F.interpolate(coarse, scale_factor=2.0)), 1))))


def beats(n):
    """Noisy ones, and clean ones as they are on the disk: without a channel."""
    at = 16 + 32 * torch.rand(n, 1)
    clean = 2 * torch.exp(-(time - at) ** 2 / 6) - torch.exp(-(time - at - 6) ** 2 / 10)
    return clean[:, None] + 0.4 * torch.randn(n, 1, 64), clean


model = BeatNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, clean = beats(24)
    out = model(x)
    loss = F.l1_loss(out, clean) + F.mse_loss(out, clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "of its own beats", F.mse_loss(out[:, 0], clean).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
