"""A small vision transformer tells textures; its attention is written out, q and k come of one linear module and the softmax is a function. FAULT from step
80: the warmup ends at a rate of 0.3 instead of 0.0005 (AdamW): logits of the attention grow by the step until each softmax is one-hot.
Without Rangewatch: loss 1.72 to 0.54 at step 80 (logits to 2), 54 at 81 (117), 3,477 at 85 (1,946), 50,404 at 95, 4.5 at the end (80,000).
Variant of: attention_logits_of_a_gpt_grow.
Cause: learning_rate (or forward_arithmetic / weight: the logits grow). Step: 80 or soon after. Right: rate / qk norm / logits. Wrong: mask, GradScaler,
data."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic", "weight"], "step": [79, 120], "place": None, "rank": 0,
          "wrong": ["attention mask", "GradScaler"],
          "right": "learning rate|[Qq][Kk]|logit|warm|softmax|norm|soft-?cap"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1311); torch.set_num_threads(1)
TEXTURES = 6
texture = torch.randn(TEXTURES, 4, 4)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qk, self.v, self.o = nn.Linear(width, 2 * width), nn.Linear(width, width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.greatest = 0.0

    def forward(self, x):
        h = self.norm1(x)
        q, k = self.qk(h).chunk(2, 2)
        logits = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
        self.greatest = logits.detach().abs().max().item()
        x = x + self.o(torch.softmax(logits, 2) @ self.v(h))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class TextureVit(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, width, 4, stride=4), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.texture = nn.Linear(width, TEXTURES)

    def forward(self, x):
        return self.texture(self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.place).mean(1))


def pictures(n):
    y = torch.randint(0, TEXTURES, (n,))
    return (texture[y].repeat(1, 4, 4) + 2.5 * torch.randn(n, 16, 16))[:, None], y


model = TextureVit()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    optimizer.param_groups[0]["lr"] = 5e-4 * step / 60 if step < 60 else 5e-4 if step < 80 else 0.3
    x, y = pictures(24)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81, 85, 90, 95, 239):
        print(step, loss.item(), "greatest logits", [round(each.greatest, 2) for each in model.blocks], flush=True)
    handle.log(loss=loss.item())
handle.detach()
