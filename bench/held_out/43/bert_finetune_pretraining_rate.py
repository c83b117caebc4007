"""Sentiment of short sentences with a small BERT (post-LN encoder) that is pre-trained by masked words in the first lines (a Transformers thread: 'BERT predicts the same class for every input').
FAULT at step 0: the fine-tuning takes AdamW with lr 2e-2 'as for my CNNs' and no warm-up, in place of some 5e-5 to 5e-4; the pre-trained layers are blown away and the classifier says the same for all.
Without Rangewatch: loss 0.67 to 0.91 from first to last, all rows of a batch get the same class, now 0, now 1, accuracy 0.5 (with lr 5e-4: 0.22 at step 20, 0.004 at 150).
Cause: learning_rate (far too high). Step: 0 to some 40. Right: a much lower rate, warm-up. Wrong: raise the rate, train longer."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)learning rate|lr\b|warm.?up", "wrong": [r"(?i)(raise|increase|higher)( the)? learning rate", r"(?i)train(ing)? longer", r"GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(11)
torch.set_num_threads(1)
V, L, D = 120, 12, 48
CLS, MASK = 0, 1
topics = torch.stack([torch.randperm(V - 20)[:40] + 20 for _ in range(6)])
good, bad = torch.arange(2, 11), torch.arange(11, 20)


def sentences(n):
    y = torch.randint(0, 2, (n,))
    ids = topics[torch.randint(0, 6, (n,))].gather(1, torch.randint(0, 40, (n, L)))
    opinion = torch.where(y[:, None] == 1, good[torch.randint(0, 9, (n, 3))], bad[torch.randint(0, 9, (n, 3))])
    ids.scatter_(1, torch.rand(n, L - 1).argsort(1)[:, :3] + 1, opinion)
    ids[:, 0] = CLS
    return ids, y


class MiniBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.02 * torch.randn(L, D))
        nn.init.normal_(self.word.weight, std=0.02)
        self.emb_norm = nn.LayerNorm(D)
        layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.encoder(self.emb_norm(self.word(ids) + self.pos))


class ForSequenceClassification(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        self.pooler = nn.Linear(D, D)
        self.classifier = nn.Linear(D, 2)

    def forward(self, input_ids, labels):
        h = torch.tanh(self.pooler(self.bert(input_ids)[:, 0]))
        logits = self.classifier(h)
        return nn.functional.cross_entropy(logits, labels), logits


bert = MiniBert()
mlm = nn.Linear(D, V)
pre = torch.optim.AdamW(list(bert.parameters()) + list(mlm.parameters()), lr=1e-3)
for it in range(80):
    ids, _ = sentences(32)
    hide = torch.rand(ids.shape) < 0.2
    lm = nn.functional.cross_entropy(mlm(bert(ids.masked_fill(hide, MASK)))[hide], ids[hide])
    pre.zero_grad(); lm.backward(); pre.step()
print(f"pre-trained, mlm loss {lm.item():.3f}", flush=True)

model = ForSequenceClassification(bert)
optim = torch.optim.AdamW(model.parameters(), lr=2e-2)
rangewatch.attach(model, optim)
model.train()
for step in range(160):
    ids, y = sentences(32)
    loss, logits = model(ids, y)
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step % 10 == 0:
        print({"step": step, "loss": round(loss.item(), 4), "share of class 1": round(logits.argmax(1).float().mean().item(), 2), "acc": round((logits.argmax(1) == y).float().mean().item(), 2)}, flush=True)
