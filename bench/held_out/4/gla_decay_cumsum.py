"""A language model of gated linear attention in chunked form: k is divided by the cumulated decay of its chunk. FAULT at step 130: the context is
made longer and with it the chunk, 16 to 96; the cumulated decay of strong gates goes under -88 and exp(-cumsum) is inf: 0 * inf is NaN.
Without Rangewatch: loss 4.0 to 1.36 at step 129, NaN at step 130.
Report: fla-org/flash-linear-attention#649 (overflow of exp by cumulated decay), pytorch/executorch#21417 (0 * inf), transformers#48455.
Cause: forward arithmetic in a mixer (layers.N.mix). Right: overflow / exp / shorter chunks / subtract first. Wrong: learning rate, data, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [130, 131], "place": r"layers\.\d.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "attention mask"],
          "right": "exp|overflow|clamp|log|inf"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(17); torch.set_num_threads(1)
VOCAB, D = 40, 32


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.gate, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        decay = F.logsigmoid(self.gate(x) - 1.0).cumsum(1)  # of the chunk, here the whole sequence
        scores = (q * decay.exp()) @ (k * (-decay).exp()).transpose(1, 2)
        return self.out(scores.tril() @ v / D ** 0.5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.mix, self.norm2 = nn.LayerNorm(D), Mix(), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        x = x + self.mix(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.layers = nn.Embedding(VOCAB, D), nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(160):
    n = 16 if step < 130 else 96
    ids = torch.randint(0, VOCAB, (16, n + 1))
    for k in range(1, n + 1):
        ids[:, k] = torch.where(torch.rand(16) < 0.25, ids[:, k], (ids[:, k - 1] * 7 + 3) % VOCAB)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 128 <= step < 133:
        print(step, round(loss.item(), 4))
