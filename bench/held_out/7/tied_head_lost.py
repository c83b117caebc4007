"""A small GPT with tied input and output embeddings. FAULT from step 160 on: ten new tokens are added by a resize that puts a new, larger table at
the input and makes an output layer of its own, initialised anew: the tying is lost and what the head had learnt is gone; the loss leaps. The
optimizer is told of all parameters.
Without Rangewatch: loss 4.13 to 1.96 at step 159, 4.29 at step 160, 1.84 again at step 200: forty steps lost, and two tables from then on.
Report: huggingface/transformers#45079 (resized LM head overwritten by random values), huggingface/transformers#1730 (resize does not keep the
tying), hiyouga/LlamaFactory#6749.
Cause: weight. Step: 160. Right: tying / head / embedding / resize / weights. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["weight", "optimizer"], "step": [158, 175], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "ti(ed|e|ying)|head|embedding|resiz|weight|initiali|overwrit|load|checkpoint|new"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(714); torch.set_num_threads(1)
WORDS, WIDTH = 48, 48
table = torch.softmax(3.5 * torch.randn(WORDS, WORDS), 1)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(16, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.words.weight, std=0.1)
        self.head.weight = self.words.weight

    def resize(self, words):
        old = self.words.weight.data
        self.words.weight = nn.Parameter(0.1 * torch.randn(words, WIDTH))
        self.words.weight.data[:len(old)] = old
        self.head.weight = nn.Parameter(0.1 * torch.randn(words, WIDTH))  # neither tied nor copied

    def forward(self, tokens):
        n = tokens.shape[1]
        h = self.words(tokens) + self.places(torch.arange(n))
        h = self.block(h, src_mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True)
        return self.head(self.norm(h))


def text(n=24, length=15):
    rows = [torch.randint(0, WORDS, (n, 1))]
    for _ in range(length):
        rows.append(torch.multinomial(table[rows[-1].squeeze(1)], 1))
    return torch.cat(rows, 1)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 160:
        model.resize(WORDS + 10)
        optimizer.param_groups[0]["params"] = list(model.parameters())
    tokens = text()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 157 < step < 163:
        print(step, loss.item(), model.head.weight is model.words.weight, flush=True)
handle.detach()
