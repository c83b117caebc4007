"""Text classifier (bag of embeddings, MLP) that gets new special tokens. FAULT from step 0: the embedding is resized, that is, replaced,
after the optimizer was made; the optimizer holds the old one, the new one gets gradients and never moves, and the loss stops early.
Report: huggingface/transformers#3519 and #3532 ("the wrong set of params for the embedding table were optimized"), microsoft/nni#4521.
Cause: optimizer, place tok.weight, from the beginning. Right: give it to the optimizer / make the optimizer after. Wrong: learning rate, mask."""
EXPECT = {"cause": ["optimizer"], "step": None, "place": r"tok(\.weight)?", "rank": None, "least": "info",
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "optimizer|parameter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Classifier(nn.Module):
    def __init__(self, v=400, d=6):
        super().__init__()
        self.tok = nn.Embedding(v, d)
        self.mlp = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.out = nn.Linear(32, 12)
    def forward(self, ids):
        return self.out(self.mlp(self.tok(ids).mean(1)))
    def resize(self, v):
        old = self.tok
        self.tok = nn.Embedding(v, old.embedding_dim)
        with torch.no_grad():
            self.tok.weight[: old.num_embeddings] = old.weight

net = Classifier()
opt = torch.optim.AdamW(net.parameters(), 2e-3)
net.resize(404)
watch = rangewatch.attach(net, opt)
topic = torch.randint(0, 12, (404,))
for step in range(350):
    label = torch.randint(0, 12, (48,))
    ids = torch.randint(0, 404, (48, 10))
    pools = [torch.nonzero(topic == c).flatten() for c in range(12)]
    for row, c in zip(ids, label.tolist()):
        row[:4] = pools[c][torch.randint(0, len(pools[c]), (4,))]
    loss = F.cross_entropy(net(ids), label)
    net.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
    if step % 25 == 0:
        print(step, loss.item())
