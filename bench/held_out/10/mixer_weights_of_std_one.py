"""An MLP-mixer that sorts tiles of floors. FAULT from step 0 on: an own init routine draws each weight of the linear layers from a normal distribution
with a standard deviation of 1 (0.02 was meant). The activations grow from layer to layer, and the loss begins at millions in place of log of 6.
Without Rangewatch: loss 6.6 million at step 0, 0.25 million at step 180, 28,000 at the end; with std=0.02 it falls from 1.79 to 0.38.
Report: pytorch/pytorch#3121 (normal_(0, 1): "many hours ... why my net did not train, the values are too high"), karpathy/build-nanogpt#18 (0.02),
lmsdss/LayerNorm-Scaling#6, unsky/focal-loss#23 (the loss at the beginning is very large).
Cause: weight (initialisation). Step: 0. Right: init / std / weights too large / scale. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["weight"], "step": [0, 40], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "initiali[sz]|init|std|weights? (are|is) (too )?(large|big)|scale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1016); torch.set_num_threads(1)
FLOORS = 6
tile = torch.randn(FLOORS, 16, 12)


class MixerBlock(nn.Module):
    def __init__(self, places, width):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return x + self.within(x)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(12, 32)
        self.blocks = nn.Sequential(MixerBlock(16, 32), MixerBlock(16, 32))
        self.head = nn.Linear(32, FLOORS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)  # std=0.02 is missing
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x)).mean(1))


model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    floor = torch.randint(0, FLOORS, (32,))
    x = tile[floor] + 1.5 * torch.randn(32, 16, 12)
    loss = F.cross_entropy(model(x), floor)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
