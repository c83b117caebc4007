"""An MLP-mixer under bfloat16 autocast that counts the dots of a picture. FAULT at step 130: the second stage of the schedule has a typing error, 0.3 instead
of 0.0003 (AdamW): the loss leaps.
Without Rangewatch: loss 2.1 to 0.79 at step 129, 0.99 at step 130, 36 at step 131, 222 at step 132, 1016 at step 134, 15799 at step 160, 888 at the
end.
Cause: learning_rate. Step: 130. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16 rounding as the cause."""
EXPECT = {"cause": ["learning_rate"], "step": [129, 134], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2527); torch.set_num_threads(1)


class Mix(nn.Module):
    def __init__(self, patches=16, width=40):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.within = nn.Sequential(nn.Linear(width, 80), nn.GELU(), nn.Linear(80, width))

    def forward(self, h):
        h = h + self.across(self.n1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.within(self.n2(h))


class Dots(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.mix, self.count = nn.Conv2d(1, 40, 5, 5), nn.Sequential(Mix(), Mix()), nn.Linear(40, 8)

    def forward(self, x):
        return self.count(self.mix(self.cut(x).flatten(2).transpose(1, 2)).mean(1))


def pictures(n):
    y = torch.randint(0, 8, (n,))
    rank = torch.rand(n, 400).argsort(1).argsort(1).view(n, 1, 20, 20)
    return 2.0 * (rank < y.view(-1, 1, 1, 1)) + 0.05 * torch.randn(n, 1, 20, 20), y


net = Dots()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    optimizer.param_groups[0]["lr"] = 3e-3 if step < 130 else 0.3
    x, y = pictures(32)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
    loss = F.cross_entropy(out.float(), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 135 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
