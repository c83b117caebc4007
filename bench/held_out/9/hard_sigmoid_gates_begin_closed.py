"""A small MobileNet-like net for leaves with squeeze and excitation. FAULT from step 0 on: the gates' bias begins at -6, which closes a soft sigmoid nearly
and a hard sigmoid wholly: all gates are exactly 0, so is what comes after them, and nothing before the last layers has a gradient.
Without Rangewatch: loss 2.08 to 2.07 (log of 8); gradients of the stem and of the gates are exactly 0 in 240 steps; with a bias of -2 it falls to 0.0001.
Report: ssui-liu/learnable-embed-sizes-for-RecSys#4 (a sigmoid that begins at -150: gradients 0), yz93/LAVT-RIS#25 (gates that begin at 0),
lucidrains/deep-cross-attention#2 (zero and ReLU: no gradient ever).
Cause: dead_units. Step: 0. Right: dead / gate / sigmoid / zero / bias. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["dead_units"], "step": [0, 120], "place": r".*(gate|excite|se|body|squeeze).*|", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "dead|activation|sigmoid|gate|saturat|zero|bias|initiali|closed"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(819); torch.set_num_threads(1)
LEAVES = 8
vein = torch.randn(LEAVES, 3, 5, 5)


class SqueezeExcite(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.squeeze, self.excite, self.gate = nn.Linear(width, width // 4), nn.Linear(width // 4, width), nn.Hardsigmoid()
        nn.init.constant_(self.excite.bias, -6.0)  # "let the gates begin closed", copied from a net with a soft sigmoid

    def forward(self, x):
        gate = self.gate(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


class MobileNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Hardswish())
        self.depth = nn.Sequential(nn.Conv2d(32, 32, 5, padding=2, groups=32), nn.BatchNorm2d(32), nn.Hardswish())
        self.se = SqueezeExcite(32)
        self.point = nn.Conv2d(32, 48, 1)
        self.head = nn.Linear(48, LEAVES)

    def forward(self, x):
        x = self.point(self.se(self.depth(self.stem(x))))
        return self.head(F.hardswish(x).amax((2, 3)))


model = MobileNetLike()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    leaf = torch.randint(0, LEAVES, (32,))
    picture = 0.6 * torch.randn(32, 3, 12, 12)
    for i in range(32):
        r, c = torch.randint(0, 8, (2,))
        picture[i, :, r:r + 5, c:c + 5] += vein[leaf[i]]
    loss = F.cross_entropy(model(picture), leaf)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 239:
        print(step, loss.item(), "gradients of stem and excite", model.stem[0].weight.grad.abs().max().item(),
              model.se.excite.weight.grad.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
