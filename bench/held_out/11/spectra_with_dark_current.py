"""A residual MLP names minerals by Raman spectra, from which the dark current of the camera is taken off. FAULT at step 110: a new reader of files gives the
spectra with the dark current (about 4 in each bin), and nothing takes it off.
Without Rangewatch: loss 2.0 to 0.68 at step 109; 2.47 at step 110 (mean of the inputs from 0.24 to 4.76), 1.59 at step 120, 0.61 at step 140.
Variant of: quiet: mean_of_the_pictures_is_no_longer_taken_off.
Cause: data. Step: 110. Right: input / data / normal / mean / preprocess / batch. Wrong: GradScaler, attention mask, rate."""
EXPECT = {"cause": ["data"], "step": [109, 113], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "input|data|normal|mean|preprocess|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1118); torch.set_num_threads(1)
MINERALS, BINS = 8, 60
at = torch.rand(MINERALS, 3) * BINS
line = torch.exp(-(torch.arange(BINS) - at[..., None]).square() / 8).sum(1)
dark = 4 + torch.rand(BINS)


class MineralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(BINS, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48)) for _ in range(3))
        self.mineral = nn.Linear(48, MINERALS)

    def forward(self, x):
        h = F.relu(self.enter(x))
        for block in self.blocks:
            h = h + block(h)
        return self.mineral(h)


def spectra(n):
    mineral = torch.randint(0, MINERALS, (n,))
    return dark + line[mineral] * (0.5 + torch.rand(n, 1)) + 0.5 * torch.randn(n, BINS), mineral


model = MineralNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, mineral = spectra(32)
    if step < 110:
        x = x - dark
    loss = F.cross_entropy(model(x), mineral)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 114:
        print(step, loss.item(), "mean of the inputs", x.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
