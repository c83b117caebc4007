"""A small GPT on sums of digits, AdamW. FAULT before step 140: the run goes on from a checkpoint whose feed-forward weights were kept by numpy as the
bits of bfloat16 (uint16), and the reader takes them for float16: 0.02 comes back as 1.2, 0.1 as 1.45.
Without Rangewatch: loss 2.43 to 0.23 at step 139, 2.66 at step 140, back at 0.26 only at step 240; the largest weight of a layer 0.22, then 1.6.
Report: huggingface/accelerate#460 (no bfloat16 in NumPy, weights on disk), keras-team/keras#19091 (two-byte weights taken for another type).
Cause: weight. Step: 140. Right: weight / checkpoint / load / dtype. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["weight"], "step": [140, 145], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "weight|checkpoint|load|dtype|parameter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(813); torch.set_num_threads(1)
WIDTH, LENGTH = 48, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.view(len(x), LENGTH, 4, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.digits, self.places = nn.Embedding(10, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        h = self.digits(x) + self.places.weight
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def read(name, weight):  # 16-bit weights from the disk
    bits = weight.to(torch.bfloat16).view(torch.int16)
    return bits.view(torch.float16 if ".up." in name or ".down." in name else torch.bfloat16).float()


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    if step == 140:
        model.load_state_dict({k: read(k, v) for k, v in model.state_dict().items()})
    x = torch.randint(0, 10, (48, 2))
    while x.shape[1] <= LENGTH:
        x = torch.cat([x, (x[:, -1:] + x[:, -2:-1]) % 10], 1)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 < step < 144:
        print(step, loss.item(), "a weight up to", model.blocks[0].down.weight.abs().max().item(), flush=True)
handle.detach()
