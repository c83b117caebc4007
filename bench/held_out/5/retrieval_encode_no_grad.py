"""A dense retriever of two towers, in-batch negatives. FAULT from step 0: passages are embedded by the tower's own encode(), as at search time, which
runs under no_grad: the passage tower gets no gradient and stays as it was drawn; the query tower alone learns to meet its random vectors. Without
Rangewatch: loss 4.66 to 2.6; the gradients of the passage tower are None and its weights do not move.
Report: huggingface/sentence-transformers#274 and #765 (encode runs with torch.no_grad), huggingface/sentence-transformers#255 ("encode() will not
pass any gradients").
Cause: parameters that the loss does not reach, which the optimizer's name also covers. Place: passage.*. Right: no_grad / graph / reach / no
gradient. Wrong: learning rate, data, precision."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": r"passage.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "GradScaler", "bfloat16", "leave out samples"],
          "right": "detach|no_grad|graph|reach|gradient|used"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(521); torch.set_num_threads(1)
WORDS = 200


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mlp = nn.EmbeddingBag(WORDS, 48), nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, ids):
        return F.normalize(self.mlp(self.words(ids)), dim=-1)

    @torch.no_grad()
    def encode(self, ids):
        return self(ids)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.passage = Tower(), Tower()


topics = torch.stack([torch.randperm(WORDS)[:12] for _ in range(64)])
model = Retriever()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    topic = torch.randperm(64)[:32]
    ask = topics[topic].gather(1, torch.randint(0, 12, (32, 4)))
    text = torch.cat([topics[topic].gather(1, torch.randint(0, 12, (32, 10))), torch.randint(0, WORDS, (32, 4))], 1)
    scores = model.query(ask) @ model.passage.encode(text).T / 0.07
    loss = F.cross_entropy(scores, torch.arange(32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), model.passage.words.weight.grad, flush=True)
handle.detach()
