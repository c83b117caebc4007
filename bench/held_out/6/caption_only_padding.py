"""A text encoder of one attention layer with a mask of padding, on captions of 1 to 10 words. FAULT at step 90: of one caption the tokenizer left
nothing; its row of scores is -Inf throughout and softmax gives NaN. Pooling multiplies it by 0, which is NaN as well.
Without Rangewatch: loss 1.94 to 0.31 at step 89, NaN at step 90, and so are all weights.
Report: pytorch/pytorch#24816 (a sequence of nothing but padding makes NaN), pytorch/pytorch#41508.
Cause: mask. Step: 90. Right: fully masked row. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["mask"], "step": [90, 91], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "mask|-inf|row|padding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(609); torch.set_num_threads(1)
PAD = 0


class TextEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(50, dim, padding_idx=PAD)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 6)

    def forward(self, ids):
        x = self.embed(ids)
        score = self.q(x) @ self.k(x).transpose(1, 2) / 32 ** 0.5
        score = score.masked_fill((ids == PAD)[:, None], float("-inf"))
        x = self.norm(x + self.o(score.softmax(-1) @ self.v(x)))
        keep = (ids != PAD).float()[..., None]
        return self.head((x * keep).sum(1) / keep.sum(1).clamp(min=1))


model = TextEncoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(150):
    y = torch.randint(0, 6, (24,))
    ids = 1 + (y[:, None] * 8 + torch.randint(0, 10, (24, 10))) % 49
    length = torch.randint(1, 11, (24,))
    if step == 90:
        length[7] = 0  # a caption of which the tokenizer left nothing
    ids = torch.where(torch.arange(10) < length[:, None], ids, torch.tensor(PAD))
    loss = F.cross_entropy(model(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or step in (89, 90, 91):
        print(step, loss.item(), model.head.weight.abs().max().item(), flush=True)
handle.detach()
