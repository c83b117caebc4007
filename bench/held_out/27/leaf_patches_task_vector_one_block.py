"""A small vision transformer for leaves (AdamW, decay 0.05). FAULT at step 115: a task vector (the way the weights went in a side run) is added to block 2 with
the weight 40 in place of 0.4; one block is moved far, all others stay.
Without Rangewatch: loss 1.59 to 0.02 at step 114, 16.7 at step 115, 3.9 at step 120, 0.28 at step 140.
Cause: weight (changed outside the optimizer), or learning_rate / optimizer (a step too large in one layer). Step: 115. Place: blocks.2. Right: weight / outside / layer. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "learning_rate", "optimizer"], "step": [114, 118], "place": "blocks\\.2.*", "rank": None,
          "right": "(?i)weight|outside|overwrit|changed|layer|learning rate|update|jump", "wrong": ["GradScaler", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2720); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"))


def leaves(n):
    y = torch.randint(0, 5, (n,))
    r, a = grid.norm(dim=0), torch.atan2(grid[0], grid[1])
    lobes = (y + 1).view(-1, 1, 1)
    edge = 0.55 + 0.3 * torch.cos(lobes * (a + 0.6 * torch.rand(n, 1, 1)))
    return torch.sigmoid((edge - r) * 12) + 0.15 * torch.randn(n, 16, 16), y


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class Leaves(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.patch = nn.Linear(16, width)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        p = x.unfold(1, 4, 4).unfold(2, 4, 4).reshape(len(x), 16, 16)
        x = self.patch(p) + self.place
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1))


net = Leaves()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    if step == 85:
        side = copy.deepcopy(net.blocks[2].state_dict())
    if step == 115:
        now = net.blocks[2].state_dict()
        net.blocks[2].load_state_dict({k: now[k] + 40 * (now[k] - side[k]) for k in now})
    x, y = leaves(32)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (114, 115, 116, 179):
        print(step, loss.item(), "block 2", net.blocks[2].mlp[0].weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
