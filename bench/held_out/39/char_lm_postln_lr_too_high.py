"""A post-norm transformer learns the next character of made-up arithmetic lines ("07+15=22;"), Adam.
FAULT at step 0: learning rate 3e-2 (a value taken over from an SGD recipe), no warm-up; some 30 times what this net bears.
Without Rangewatch: loss 2.7, 2.24 at step 20, 1.45 at 80, still 1.4 to 1.7 at 159 (with 1e-3: 0.87 at step 40, 0.72 at 160).
Cause: learning_rate. Step: from 0; it is plain in the first dozens of steps. Right: lower the learning rate / warm-up.
Wrong: raise the learning rate, GradScaler, replace the mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 100], "place": None, "rank": None,
          "right": r"(?i)learning rate|\blr\b|warm-?up", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import random
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

random.seed(5); torch.manual_seed(5); torch.set_num_threads(1)
alphabet = "0123456789+=;"
stoi = {c: i for i, c in enumerate(alphabet)}
text = "".join(f"{a:02d}+{b:02d}={a + b:02d};" for a, b in ((random.randint(0, 9), random.randint(0, 9)) for _ in range(5000)))
corpus = torch.tensor([stoi[c] for c in text])
BLOCK, WIDTH = 36, 64


def get_batch(n=24):
    ix = torch.randint(0, len(corpus) // 9 - 6, (n,)) * 9
    return torch.stack([corpus[i:i + BLOCK] for i in ix]), torch.stack([corpus[i + 1:i + BLOCK + 1] for i in ix])


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_emb = nn.Embedding(len(alphabet), WIDTH)
        self.pos_emb = nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, len(alphabet))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, idx):
        h = self.tok_emb(idx) + self.pos_emb.weight
        return self.lm_head(self.blocks(h, mask=self.causal, is_causal=True))


lm = CharLM()
opt = torch.optim.Adam(lm.parameters(), lr=3e-2, betas=(0.9, 0.95))
handle = rangewatch.attach(lm, opt)
for step in range(160):
    xb, yb = get_batch()
    loss = F.cross_entropy(lm(xb).flatten(0, 1), yb.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 159:
        print(f"{step} loss {loss.item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
