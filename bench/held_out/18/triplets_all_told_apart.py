"""A net lays signatures into a space by triplets (same hand, other hand), and the gradients are clipped by hand, to a length of 0.5: g * 0.5 / norm. FAULT
where the norm is 0: at step 114 a batch comes with gross forgeries only, each triplet has more than its margin, the loss is exactly 0 and so is each
gradient: 0 * (1 / 0) is NaN, and all weights with it.
Without Rangewatch: loss 0.28 to 0.14 at step 113, 0 with a norm of 0 at step 114, NaN from step 115 on.
Cause: clip (or backward_arithmetic, optimizer). Step: 114. Right: clip / norm / divide / zero / eps / clip_grad_norm_. Wrong: GradScaler, mask, lower the
rate."""
EXPECT = {"cause": ["clip", "backward_arithmetic", "optimizer"], "step": [113, 116], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)clip|norm|divi|zero|eps"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1829); torch.set_num_threads(1)
HANDS = 40
hand_of = torch.randn(HANDS, 30)
skew = torch.randn(30, 30) / 5


class Signature(nn.Module):
    def __init__(self):
        super().__init__()
        self.stroke = nn.Linear(30, 48)
        self.space = nn.Linear(48, 12)

    def forward(self, x):
        return F.normalize(self.space(torch.tanh(self.stroke(x))), dim=1)


def signatures(hand):
    return torch.tanh(hand_of[hand] + 0.9 * torch.randn(len(hand), 30)) + hand_of[hand] @ skew * 0.3


model = Signature()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    hand = torch.randint(0, HANDS, (64,))
    other = (hand + torch.randint(1, HANDS, (64,))) % HANDS
    anchor, same, forged = signatures(hand), signatures(hand), signatures(other)
    if step == 114:
        same, forged = anchor + 0.01 * torch.randn(64, 30), -anchor
    a, s, f = model(anchor), model(same), model(forged)
    loss = F.relu((a - s).square().sum(1) - (a - f).square().sum(1) + 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= 0.5 / norm  # each step has the same length
    optimizer.step()
    if step % 20 == 0 or 112 < step < 117 or step == 179:
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item(), norm=norm.item())
handle.detach()
