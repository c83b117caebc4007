"""A text classifier whose attention was moved from nn.MultiheadAttention to scaled_dot_product_attention. FAULT from step 0: the padding mask kept its
meaning (True: padding), which is the inverse there (True: attend): tokens attend to the padding alone. At step 120 the first bucket without padding
comes, and rows of it may attend to nothing. Without Rangewatch: loss 2.19 to 0.6 (a bag of words needs no attention), NaN from step 120 on.
Report: rasbt/LLMs-from-scratch#1061 (for SDPA True takes part in attention, the mask needs ~), pytorch/pytorch#103749 and #103963.
Cause: mask. Right: invert the mask / rows that attend to nothing. Wrong: learning rate, precision, loss scale."""
EXPECT = {"cause": ["mask"], "step": [0, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "loss scale", "float32"], "right": "[Mm]ask|attend|padding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(9); torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, key_padding_mask):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        scores = scores.masked_fill(~key_padding_mask[:, None, None, :], float("-inf"))  # the reference of SDPA for a mask of booleans
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(d), Attention(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, padding):
        x = x + self.attention(self.norm1(x), padding)
        return x + self.mlp(self.norm2(x))


class Classifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(200, d, padding_idx=0), nn.ModuleList([Block(d) for _ in range(2)]), nn.Linear(d, 8)

    def forward(self, ids):
        padding = ids == 0
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, padding)
        keep = (~padding).float()[..., None]
        return self.head((x * keep).sum(1) / keep.sum(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    y = torch.randint(0, 8, (32,))
    ids = torch.randint(80, 200, (32, 16))
    ids[:, :3] = 1 + y[:, None] * 9 + torch.randint(0, 9, (32, 3))
    length = torch.full((32,), 16) if step == 120 else torch.randint(6, 16, (32,))
    ids[torch.arange(16) >= length[:, None]] = 0
    loss = F.cross_entropy(model(ids), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or 118 <= step < 123:
        print(step, round(loss.item(), 4))
