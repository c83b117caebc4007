"""A convolutional encoder, pretrained, is frozen under a new linear head; the head's Adam has a learning rate of 0.04, which suits it.
FAULT at step 150: the encoder is unfrozen with `add_param_group` and no learning rate of its own, so it gets the optimizer's default, the head's
0.04, where its pretraining had 1e-3: the features are destroyed, the loss goes from near 0 to some tens. Report: luxonis/luxonis-train#234 (the divisor
for what was just unfrozen became 1), Lightning-AI/pytorch-lightning#8720.
Cause: learning_rate, step 150. Right: a smaller learning rate (for that group). Wrong: mask, precision, leave out samples."""
EXPECT = {"cause": ["learning_rate"], "step": [149, 156], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(4); torch.set_num_threads(1)
K = 8
patterns = torch.randn(2 * K, 1, 12, 12)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(32, 32, 3, stride=2, padding=1)
    def forward(self, x):
        x = F.silu(self.c1(x)); x = F.silu(self.c2(x)); x = F.silu(self.c3(x))
        return F.layer_norm(x.flatten(1), (288,))

def batch(first, n=32, noise=2.0):
    y = torch.randint(0, K, (n,))
    return patterns[first + y] + noise * torch.randn(n, 1, 12, 12), y

encoder = Encoder()
old_head = nn.Linear(288, K)
pre = torch.optim.Adam([*encoder.parameters(), *old_head.parameters()], 1e-3)
for _ in range(150):
    x, y = batch(0)
    loss = F.cross_entropy(old_head(encoder(x)), y)
    pre.zero_grad(); loss.backward(); pre.step()
print("pretrained", loss.item())

class Transfer(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(288, K)
    def forward(self, x):
        return self.head(self.encoder(x))

model = Transfer(encoder)
for p in model.encoder.parameters():
    p.requires_grad_(False)
opt = torch.optim.Adam(model.head.parameters(), lr=0.04)
watch = rangewatch.attach(model, opt)
for step in range(260):
    if step == 150:
        for p in model.encoder.parameters():
            p.requires_grad_(True)
        opt.add_param_group({"params": list(model.encoder.parameters())})
    x, y = batch(K)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 10 == 0 or 148 <= step < 160:
        print(step, loss.item())
