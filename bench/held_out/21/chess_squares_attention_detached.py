"""A vision transformer on boards of 4 x 4 squares counts attacked pieces. FAULT at step 0: in its second block the mixture of the values is taken with .data ("to save memory"),
so that query, key and value of that block have no gradient; the block only learns its projection and its MLP.
Without Rangewatch: loss 4.0 to 0.19; eight tensors (query, key, value and the norm before them, all in block 1) have .grad None at each step.
Cause: no_gradient. Step: 0 to the end, a state. Place: block 1 (its attention and the norm before it). Right: detach / .data / gradient / graph. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 199], "place": "blocks\\.1.*", "rank": 0,
          "right": "(?i)detach|\\.data|gradient|graph|no_grad", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2123)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d, cut):
        super().__init__()
        self.cut = cut
        self.query, self.key, self.value, self.project = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.project(mixed.data if self.cut else mixed)


class Block(nn.Module):
    def __init__(self, d, cut):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = Attention(d, cut)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class Board(nn.Module):
    def __init__(self, d=36):
        super().__init__()
        self.piece, self.square = nn.Embedding(3, d), nn.Parameter(0.1 * torch.randn(16, d))
        self.blocks = nn.Sequential(Block(d, False), Block(d, True), Block(d, False))
        self.count = nn.Linear(d, 1)

    def forward(self, x):
        return self.count(self.blocks(self.piece(x) + self.square)).sum((1, 2))


def boards(n):
    x = torch.randint(0, 3, (n, 16))  # 0 nothing, 1 rook, 2 pawn
    b = x.view(n, 4, 4)
    rook, pawn = (b == 1).float(), (b == 2).float()
    attacked = pawn * ((rook.sum(1, keepdim=True) + rook.sum(2, keepdim=True)) > 0)
    return x, attacked.sum((1, 2))


model = Board()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = boards(48)
    loss = F.l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "without a gradient:", sum(p.grad is None for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
