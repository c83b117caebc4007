"""A small highway net with a multi-class hinge loss over soil samples and a clip written by hand. FAULT at the step where every sample of a batch meets its margin: the
loss and all gradients are exactly 0, the clip computes limit / norm = inf, and 0 times inf is NaN in every weight.
Without Rangewatch: loss 0.91 to 0.004 at step 160; at step 162 it and the norm are 0, from step 163 on the norm and the weights are NaN and the hinge loss reads 0.0.
Cause: clip (also backward_arithmetic, eps: the division by 0). Step: 162. Right: clip / norm / divide / eps. Wrong: GradScaler, lower the rate, attention mask."""
EXPECT = {"cause": ["clip", "eps", "backward_arithmetic"], "step": [161, 164], "place": None, "rank": 0,
          "right": "(?i)clip|norm|divi|eps|zero", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2421); torch.set_num_threads(1)


class Highway(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.carry, self.change = nn.Linear(n, n), nn.Linear(n, n)
        nn.init.constant_(self.carry.bias, -1.0)

    def forward(self, x):
        g = torch.sigmoid(self.carry(x))
        return g * torch.relu(self.change(x)) + (1 - g) * x


soil = 1.0 * torch.randn(6, 64)
net = nn.Sequential(Highway(64), Highway(64), Highway(64), nn.Linear(64, 6))
optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    k = torch.randint(0, 6, (24,))
    loss = F.multi_margin_loss(net(soil[k] + 0.9 * torch.randn(24, 64)), k)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
    factor = 0.5 / norm  # brings the norm to 0.5, from above and from below
    for p in net.parameters():
        p.grad.mul_(factor)
    optimizer.step()
    if step % 10 == 0 or 160 < step < 165 or step == 199:
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
