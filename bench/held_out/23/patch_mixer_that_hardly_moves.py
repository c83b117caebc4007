"""An MLP-Mixer on small pictures of woven patterns. FAULT from step 0 on: the rate of SGD is 1e-7 (a minus too many in the exponent of the settings); no
weight changes by more than about 1e-5 in the whole training.
Without Rangewatch: loss 2.28 at step 0, 2.24 at step 229 (chance is 2.20), the largest move of a weight 1.3e-5; with 0.1 it is 0.0007 at step 40.
Causes: learning_rate (too small). Right: learning rate. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 229], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2325); torch.set_num_threads(1)
weave = (torch.rand(9, 1, 16, 16) < 0.5).float()


class Mix(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.across(self.n1(x).mT).mT
        return x + self.within(self.n2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 4, 4)
        self.mix = nn.Sequential(Mix(16, 32), Mix(16, 32))
        self.name = nn.Linear(32, 9)

    def forward(self, x):
        return self.name(self.mix(self.patch(x).flatten(2).mT).mean(1))


model = Mixer()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-7, momentum=0.9)
first = [p.detach().clone() for p in model.parameters()]
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    y = torch.randint(0, 9, (48,))
    loss = nn.functional.cross_entropy(model(weave[y] + 0.3 * torch.randn(48, 1, 16, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 229:
        print(step, loss.item(), "largest move", max((p - q).abs().max().item() for p, q in zip(model.parameters(), first)), flush=True)
    handle.log(loss=loss.item())
handle.detach()
