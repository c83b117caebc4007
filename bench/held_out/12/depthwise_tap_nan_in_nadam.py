"""Sleep stages from a temporal net of depthwise and pointwise convolutions with layer scales, NAdam. FAULT at step 88: one tap of the second block's depthwise
kernel is NaN after the update of step 87 (a bad write); loss and gradients had been finite.
Without Rangewatch: loss 1.64 to 0.66 at step 87, NaN from step 88 on.
Variant of: weight_set_to_nan_under_adam.
Cause: weight. Step: 88 (87 would do). Place: blocks.1.depth. Right: weight / checkpoint / memory / overwritten. Wrong: lower the rate, mask."""
EXPECT = {"cause": ["weight"], "step": [87, 89], "place": ".*blocks\\.1\\.depth.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|checkpoint|memory|overwrit|written|restore|hardware"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1228); torch.set_num_threads(1)
STAGES = 5
rhythm = torch.randn(STAGES, 3, 32)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depth = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.point = nn.Conv1d(width, width, 1)
        self.scale = nn.Parameter(0.3 * torch.ones(width, 1))

    def forward(self, x):
        return x + self.scale * F.gelu(self.point(self.norm(self.depth(x))))


class Sleep(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Conv1d(3, 24, 3, padding=1)
        self.blocks = nn.Sequential(Block(24), Block(24), Block(24))
        self.stage = nn.Linear(24, STAGES)

    def forward(self, x):
        return self.stage(self.blocks(self.into(x)).mean(2))


model = Sleep()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 88:
        with torch.no_grad():
            model.blocks[1].depth.weight[5, 0, 2] = float("nan")
    y = torch.randint(0, STAGES, (32,))
    loss = F.cross_entropy(model(rhythm[y] + torch.randn(32, 3, 32)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (87, 88, 89, 209):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
