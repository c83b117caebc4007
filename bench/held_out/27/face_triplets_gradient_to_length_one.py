"""An embedding of faces with a triplet loss; by hand, the gradient is brought to length 0.5 before each step of SGD. FAULT: as soon as all triplets of a batch are
beyond the margin, the loss is 0 and so is the length: 0.5 / 0 * 0 is NaN in every weight. Here that is step 125.
Without Rangewatch: loss 0.16 to 0.02 to 0.05 near step 100, 0 at step 125, NaN from step 126.
Cause: clip, backward_arithmetic or eps. Step: 125. Right: clip / norm / zero / eps. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "eps", "backward_arithmetic", "optimizer"], "step": [120, 140], "place": None, "rank": None,
          "right": "(?i)clip|norm|zero|eps|divi|nan", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2727); torch.set_num_threads(1)
people = torch.randn(40, 24)


def triplets(n):
    who = torch.randint(0, 40, (n,))
    other = (who + torch.randint(1, 40, (n,))) % 40
    look = lambda k: people[k] + 0.8 * torch.randn(n, 24)
    return look(who), look(who), look(other)


def loss_of(weights, anchor, same, other, margin=0.5):
    def embed(x):
        h = torch.relu(x @ weights["w1"] + weights["b1"])
        return F.normalize(h @ weights["w2"], dim=1)
    a, s, o = embed(anchor), embed(same), embed(other)
    return F.relu((a - s).pow(2).sum(1) - (a - o).pow(2).sum(1) + margin).mean()


class Faces(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(24, 64) / 24 ** 0.5)
        self.b1 = nn.Parameter(torch.zeros(64))
        self.w2 = nn.Parameter(torch.randn(64, 16) / 8)

    def forward(self, *views):
        return loss_of(dict(self.named_parameters()), *views)


net = Faces()
optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.8)
handle = rangewatch.attach(net, optimizer)
first = None
for step in range(220):
    loss = net(*triplets(24))
    optimizer.zero_grad()
    loss.backward()
    length = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
    for p in net.parameters():
        p.grad.mul_(0.5 / length)
    optimizer.step()
    if first is None and not loss.item() > 0:
        first = step
        print("first batch without a loss", step, loss.item(), length.item(), flush=True)
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "length", length.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
