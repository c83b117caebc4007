"""A net that embeds bird calls, trained with triplets. FAULT at step 140: the distance is written as sqrt of a sum of squares, and anchor and positive of
one triplet are the same recording (the file is in the folder twice). The loss is finite, the derivative of the square root at 0 is not: 0 times inf.
Without Rangewatch: loss 0.95 to 0.0002 at step 139; at step 140 the loss is 0.069 and the gradient norm NaN, at step 141 the loss is NaN as well.
Report: pytorch/pytorch#2421 (gradient of a zero norm is NaN), pytorch/pytorch#6394 (sqrt of a square), richzhang/PerceptualSimilarity#69
("SqrtBackward returned nan values").
Cause: backward_arithmetic. Step: 140. Right: sqrt / distance / backward / epsilon / zero. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [140, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|square root|norm|distance|backward|epsilon|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1002); torch.set_num_threads(1)
BIRDS = 12
song = torch.randn(BIRDS, 8, 40)


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(8, 32, 5, stride=2), nn.GELU(), nn.Conv1d(32, 32, 5, stride=2), nn.GELU())
        self.embed = nn.Linear(32, 16)

    def forward(self, x):
        return self.embed(self.conv(x).mean(2))


def distance(a, b):
    return ((a - b) ** 2).sum(1).sqrt()


def record(bird):
    return song[bird] + 1.2 * torch.randn(len(bird), 8, 40)


model = CallNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    bird = torch.randint(0, BIRDS, (48,))
    other = (bird + torch.randint(1, BIRDS, (48,))) % BIRDS
    anchor, positive, negative = record(bird), record(bird), record(other)
    if step == 140:
        positive[5] = anchor[5]  # the copy of the same file
    a, p, n = model(anchor), model(positive), model(negative)
    loss = F.relu(distance(a, p) - distance(a, n) + 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    if step % 20 == 0 or step in (139, 140, 141, 239):
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
