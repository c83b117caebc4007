"""Mood of product reviews (token sequences of 6 to 19 words, padded to 20) by nn.TransformerEncoder, Adam.
FAULT at step 0: the padding mask is built as (tokens != PAD), but src_key_padding_mask wants True at the padding: the real words are hidden and the model looks at nothing but padding.
Without Rangewatch: loss 0.66 to 0.72 from first to last, accuracy about 0.5 (with the right mask: loss 0.41 at step 20, 0.008 at 179).
Cause: mask (inverted). Step: from 0. Right: the padding mask must be True at the padding (tokens == PAD). Wrong: GradScaler, lower the learning rate, zero_grad."""
EXPECT = {"cause": ["mask"], "step": [0, 120], "place": None, "rank": None,
          "right": r"(?i)mask|padding", "wrong": ["GradScaler", r"(?i)lower the learning rate", r"(?i)call (optimizer\.)?zero_grad"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(19)
torch.set_num_threads(1)
PAD, VOCAB, LONGEST = 0, 200, 20
good, bad_words = torch.arange(1, 16), torch.arange(16, 31)


def reviews(n):
    mood = torch.randint(0, 2, (n,))
    tokens = torch.full((n, LONGEST), PAD)
    for i in range(n):
        length = int(torch.randint(6, LONGEST, (1,)))
        words = torch.randint(31, VOCAB, (length,))
        k = max(3, length // 3)
        pool = good if mood[i] else bad_words
        words[torch.randperm(length)[:k]] = pool[torch.randint(0, 15, (k,))]
        tokens[i, :length] = words
    return tokens, mood


class Positions(nn.Module):
    def __init__(self, d):
        super().__init__()
        pos, div = torch.arange(LONGEST)[:, None], torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(LONGEST, d)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe


class MoodTransformer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.positions = Positions(d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)
        self.cls = nn.Parameter(0.02 * torch.randn(d))

    def forward(self, tokens):
        key_padding = (tokens != PAD)
        x = self.positions(self.embedding(tokens))
        x = torch.cat([(x[:, :1] * 0 + self.cls), x], 1)
        key_padding = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.bool), key_padding], 1)
        return self.head(self.encoder(x, src_key_padding_mask=key_padding)[:, 0])


model = MoodTransformer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    tokens, mood = reviews(48)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits, mood)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 179:
        print(f"step {step} loss {loss.item():.4f} acc {(logits.argmax(1) == mood).float().mean().item():.2f}", flush=True)
handle.detach()
