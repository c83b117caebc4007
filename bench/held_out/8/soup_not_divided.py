"""A classifier of leaves (residual convolutions, weight-standardised by nothing), SGD. FAULT before step 150: the weights of the last four snapshots
are summed for a soup and loaded to train on from, but the sum is not divided by four: every weight is four times what it was.
Without Rangewatch: loss 2.13 to 0.07 at step 149, 4.4 at step 150 and up to 5.2 after; the largest weight of the first layer 0.28, then 1.12 for
good.
Report: NVIDIA-NeMo/Skills#110 and #415 (averaging of checkpoints gone wrong), wandb/senpai#2142 (a soup that is far worse than its parts).
Cause: weight. Step: 150. Right: weight / checkpoint / load / average. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["weight"], "step": [150, 155], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "weight|checkpoint|load|averag|parameter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(812); torch.set_num_threads(1)
KINDS = 8
leaves = torch.randn(KINDS, 3, 8, 8)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + 0.5 * self.b(F.relu(self.a(x)))


model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), Block(24), nn.MaxPool2d(2), Block(24), nn.Flatten(), nn.Linear(24 * 16, KINDS))
optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
snapshots = []
for step in range(260):
    if step in (120, 130, 140, 149):
        snapshots.append({k: v.clone() for k, v in model.state_dict().items()})
    if step == 150:
        model.load_state_dict({k: sum(s[k] for s in snapshots) for k in snapshots[0]})  # / len(snapshots)
    y = torch.randint(0, KINDS, (32,))
    x = leaves[y] + 1.5 * torch.randn(32, 3, 8, 8)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 148 < step < 154:
        print(step, loss.item(), "a weight up to", model[0].weight.abs().max().item(), flush=True)
handle.detach()
