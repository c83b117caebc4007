"""A small decoder with rotary positions. FAULT before step 140: after an interruption the weights' memory is taken anew (to_empty) and the checkpoint is
read into it; the buffer inv_freq is not persistent, so no checkpoint holds it, and it keeps what lay in the memory: numbers of any size and NaN.
Without Rangewatch: loss 3.76 to 1.84 at step 139, NaN from step 140 on; all parameters are as before at step 140.
Report: huggingface/transformers#45902 (inv_freq reads uninitialised memory after to_empty), macwiatrak/Bacformer#33, Synthyra/FastPLMs#47,
OpenMOSS/MOSS-TTS-Nano#28.
Cause: weight (a buffer). Step: 140. Right: buffer / weights / checkpoint / initialise. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [140, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "buffer|weight|checkpoint|load|initiali|parameter|restor|corrupt"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(810); torch.set_num_threads(1)
WORDS, WIDTH, HEADS = 40, 48, 4
follows = torch.softmax(3 * torch.randn(WORDS, WORDS), 1)


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, length):
        angle = torch.outer(torch.arange(length).float(), self.inv_freq)
        return angle.cos(), angle.sin()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.rotary = Rotary(WIDTH // HEADS)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 96), nn.SiLU(), nn.Linear(96, WIDTH))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(n)
        q, k = (torch.cat([a * cos - c * sin, a * sin + c * cos], -1) for a, c in (t.chunk(2, -1) for t in (q, k)))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.ff(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(n, length=16):
    ids = [torch.randint(0, WORDS, (n,))]
    for _ in range(length):
        ids.append(torch.multinomial(follows[ids[-1]], 1)[:, 0])
    return torch.stack(ids, 1)


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 140:  # back from the host after an interruption: memory is taken anew and the checkpoint read into it
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        model.to_empty(device="cpu")
        for block in model.blocks:  # what happened to lie there, made the same for each run
            block.rotary.inv_freq.copy_(torch.randint(-2**31, 2**31 - 1, (WIDTH // HEADS // 2,)).int().view(torch.float32))
            block.rotary.inv_freq[2] = float("nan")
        model.load_state_dict(saved)  # inv_freq is in no checkpoint: nothing is missing
    ids = text(24)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (139, 141) or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
