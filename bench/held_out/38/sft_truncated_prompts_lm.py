"""A small causal transformer is tuned on prompt-answer pairs (the answer repeats the prompt's last three letters backwards); the loss is on the answer's tokens only, mean per answer and then over the batch; Adam with betas (0.9, 0.95), bfloat16 autocast.
FAULT at step 120: one row's prompt is as long as the context (16); cutting from the right leaves no token of its answer, its mask is all zeros, and its mean is 0/0.
Without Rangewatch: loss 2.83 to 0.45 at step 119, NaN from step 120 on (the printed least number of answer tokens in a row is 0 there, 3 else).
Cause: data / mask / forward_arithmetic. Step: 120. Right: a row without labels / tokens to learn from; division by zero; drop it or truncate the prompt. Wrong: lower the learning rate, GradScaler, initialisation."""
EXPECT = {"cause": ["data", "mask", "forward_arithmetic"], "step": [119, 122], "place": None, "rank": None,
          "right": r"(?i)label|target|token|divi|mean|0/0|empty|mask|loss", "wrong": ["[Ll]ower the learning rate", "GradScaler", "initiali[sz]ation"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(990); torch.set_num_threads(1)
LETTERS, SEP, PAD, CONTEXT = 10, 10, 11, 16


def collate(n, longest):
    ids, learn = torch.full((n, CONTEXT + 1), PAD), torch.zeros(n, CONTEXT + 1)
    for row in range(n):
        length = longest if row == n - 1 else int(torch.randint(4, 11, ()))
        prompt = torch.randint(0, LETTERS, (length,))
        answer = prompt[-3:].flip(0)
        text = torch.cat([prompt, torch.tensor([SEP]), answer])
        marks = torch.cat([torch.zeros(length + 1), torch.ones(3)])
        text, marks = text[: CONTEXT + 1], marks[: CONTEXT + 1]
        ids[row, : len(text)], learn[row, : len(text)] = text, marks
    return ids[:, :-1], ids[:, 1:], learn[:, 1:]


class Layer(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.ln_in, self.ln_mid = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, h):
        b, t, c = h.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.ln_in(h)).chunk(3, 2))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return h + self.ff(self.ln_mid(h))


class Tuned(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(12, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(Layer(width), Layer(width))
        self.lm_head = nn.Linear(width, 12)

    def forward(self, ids):
        return self.lm_head(self.layers(self.wte(ids) + self.wpe.weight))


lm = Tuned()
adam = torch.optim.Adam(lm.parameters(), lr=3e-3, betas=(0.9, 0.95))
handle = rangewatch.attach(lm, adam)
for step in range(180):
    ids, nxt, learn = collate(24, longest=16 if step == 120 else 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = lm(ids)
    each = F.cross_entropy(logits.float().transpose(1, 2), nxt, reduction="none")
    loss = ((each * learn).sum(1) / learn.sum(1)).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 0 or 118 < step < 123:
        print(step, "loss", loss.item(), "least answer tokens in a row", int(learn.sum(1).min()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
