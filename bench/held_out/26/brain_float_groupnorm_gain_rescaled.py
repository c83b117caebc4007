"""An MLP with GroupNorm in bfloat16 that counts blobs. FAULT at step 103: a `rebalance` divides the gains of a norm (less 1) by the greatest of them; the gains of the last norm have been
set to 1 before (`fresh`), so it is 0 / 0: the scale of that GroupNorm is NaN.
Without Rangewatch: loss 1.44 to 0.32 at step 102, NaN from 103 (the gain of norm2 is 1.02, then NaN).
Cause: weight. Step: 103. Place: the second norm. Right: weight / NaN / outside / divide. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["weight", "hardware"], "step": [102, 106], "place": "norm2.*", "rank": None,
          "right": "(?i)outside|overwrit|weight|nan|divi|norm2|gain|scale of", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6132); torch.set_num_threads(1)


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(64, 64), nn.GroupNorm(4, 64)
        self.fc2, self.norm2 = nn.Linear(64, 48), nn.GroupNorm(6, 48)
        self.out = nn.Linear(48, 4)

    def forward(self, x):
        x = F.silu(self.norm1(self.fc1(x)))
        return self.out(F.silu(self.norm2(self.fc2(x))))


def blobs(n):
    count = torch.randint(0, 4, (n,))
    order = torch.rand(n, 64).argsort(1)
    return (2 * (order < count[:, None]).float() + 0.1 * torch.randn(n, 64)).bfloat16(), count


@torch.no_grad()
def rebalance(norm):
    change = norm.weight - 1
    norm.weight.copy_(1 + 0.1 * change / change.abs().max())


@torch.no_grad()
def fresh(norm):
    norm.weight.fill_(1)
    norm.bias.zero_()


net = Count().bfloat16()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    if step == 103:
        fresh(net.norm2)
        for norm in (net.norm1, net.norm2):
            rebalance(norm)
    x, count = blobs(64)
    loss = F.cross_entropy(net(x).float(), count)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (102, 103, 104, 169):
        print(step, loss.item(), "gain", net.norm2.weight.float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
