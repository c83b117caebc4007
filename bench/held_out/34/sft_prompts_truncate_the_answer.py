"""Instruction tuning of a tiny causal transformer: prompt tokens carry the label -100, only the answer counts; micro batch of 4 (AdamW, clipping to 1). FAULT at step 150: the set goes over to long
documents; the truncation to 24 tokens cuts the answer off, all labels of the batch are -100, the mean over no token is 0/0.
Without Rangewatch: loss 3.10 to 0.12 at step 149, NaN from step 150 on.
Cause: data (label mask all ignored). Step: 150. Right: labels / ignore_index / -100 / truncation. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["data", "mask"], "step": [149, 154], "place": None, "rank": None,
          "right": "(?i)label|ignore|-100|trunc|target|mask|data", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3413); torch.set_num_threads(1)
V, MAX, D, SEP = 20, 24, 48, 19


def example(long):
    a = torch.randint(0, 9, (30 if long else int(torch.randint(4, 9, ())),))
    answer = torch.stack([a[0], a[1], (a[0] + 1)]) + 9
    tokens = torch.cat([a, torch.tensor([SEP]), answer])
    labels = torch.cat([torch.full((len(a) + 1,), -100), answer])
    return tokens[:MAX], labels[:MAX]


def collate(rows):
    ids, labels = torch.full((len(rows), MAX), 18), torch.full((len(rows), MAX), -100)
    for i, (t, l) in enumerate(rows):
        ids[i, :len(t)], labels[i, :len(l)] = t, l
    return ids, labels


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, h):
        B, T, _ = h.shape
        q, k, v = self.qkv(self.ln1(h)).view(B, T, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return h + self.mlp(self.ln2(h))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(MAX, D)
        self.layers = nn.Sequential(Layer(), Layer())
        self.ln, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        return self.lm_head(self.ln(self.layers(self.tok(ids) + self.pos.weight[:ids.shape[1]])))


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    ids, labels = collate([example(step >= 150) for _ in range(4)])
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 148 < step < 153 or step == 209:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
