"""Supervised fine-tuning on a toy: a small causal language model answers prompts (it repeats the prompt's first signs shifted by one); the labels of the prompt are -100, the texts are cut to 24 tokens. Two examples a batch, AdamW.
FAULT at step 150: both prompts of that batch are longer than the window, so that no token of an answer is left: every label is -100 and the mean over no token is NaN.
Without Rangewatch: loss 2.89 to 0.04 at step 149, NaN from step 150 on.
Cause: mask / data. Step: 150. Right: ignore_index / -100 / truncation / empty labels. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data"], "step": [149, 154], "place": None, "rank": None,
          "right": "(?i)-100|ignore|label|target|truncat|masked|empty", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(407); torch.set_num_threads(1)
V, WINDOW, W, SEP = 16, 24, 48, 15


def example(prompt_len):
    prompt = torch.randint(1, 14, (prompt_len,))
    answer = (prompt[:1] + torch.arange(6)) % 13 + 1
    ids = torch.cat([prompt, torch.tensor([SEP]), answer])
    labels = ids.clone()
    labels[:prompt_len + 1] = -100
    ids, labels = ids[:WINDOW], labels[:WINDOW]          # truncation, as in every collator
    fill = WINDOW - len(ids)
    return F.pad(ids, (0, fill), value=0), F.pad(labels, (0, fill), value=-100)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.proj = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.mlp = nn.Sequential(nn.Linear(W, 96), nn.GELU(), nn.Linear(96, W))

    def forward(self, h):
        q, k, v = (t.unflatten(-1, (4, 12)).transpose(1, 2) for t in self.qkv(self.n1(h)).chunk(3, -1))
        h = h + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return h + self.mlp(self.n2(h))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, W), nn.Embedding(WINDOW, W)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, V, bias=False)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    lens = [int(torch.randint(3, 16, ())) for _ in range(2)] if step != 150 else [31, 27]
    ids, labels = (torch.stack(t) for t in zip(*map(example, lens)))
    logits = model(ids)
    target = labels[:, 1:].flatten()
    counted = (target != -100).float()
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), target.clamp(min=0), reduction="none")
    loss = (each * counted).sum() / counted.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 148 < step < 153:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
