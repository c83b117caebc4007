"""A denoising autoencoder of spectra, SGD with CosineAnnealingLR. FAULT at step 90: T_max is 90, left from a shorter training, and the training has 260
steps: the rate is 0 at step 90 and climbs again from there, to the whole 1.5 at step 180, and down once more; the loss follows it.
Without Rangewatch: loss 0.42 to 0.035 at step 89, 0.105 at 180, 0.032 at the end.
Variant of: cosine_of_100_steps_in_a_training_of_260.
Cause: learning_rate. Step: 90, or while the rate climbs. Right: T_max / schedule / cosine / rate. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [84, 185], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "T_max|[Cc]osine|[Ss]chedul|learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1322); torch.set_num_threads(1)
LINES = torch.linspace(0, 1, 40)


class Spectra(nn.Module):
    def __init__(self):
        super().__init__()
        self.press = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 6))
        self.spread = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 40))

    def forward(self, x):
        return self.spread(self.press(x))


def spectra(n):
    middle, height = torch.rand(n, 2, 1), 0.5 + torch.rand(n, 2, 1)
    clean = (height * torch.exp(-((LINES - middle) / 0.12) ** 2)).sum(1)
    return clean + 0.3 * torch.randn(n, 40), clean


model = Spectra()
optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)  # meant: 260
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = spectra(16)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step in (89, 90, 91, 259):
        print(step, loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
