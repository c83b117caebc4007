"""A dense retriever of two towers that share one encoder; in-batch negatives first, then from step 100 on two hard negatives a query, mined anew with
the current encoder each 50 steps: the loss jumps up when they come and at each mining. The temperature is learned. HEALTHY. Without Rangewatch:
loss 2.5 to 1.05 at step 80, 2.03 at step 100, 1.0 to 1.3 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(531); torch.set_num_threads(1)
WORDS, TOPICS = 240, 96


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mlp = nn.EmbeddingBag(WORDS, 48), nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids):
        return F.normalize(self.mlp(self.words(ids)), dim=-1)


topics = torch.stack([torch.randint(0, WORDS, (14,)) for _ in range(TOPICS)])
texts = torch.stack([topics[i].repeat(2)[torch.randperm(28)[:12]] for i in range(TOPICS)])
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
hard = None
for step in range(260):
    if step >= 100 and step % 50 == 0:
        model.eval()
        with torch.no_grad():
            every = model(texts)
            hard = (every @ every.T - 2 * torch.eye(TOPICS)).topk(6, 1).indices
        model.train()
    topic = torch.randperm(TOPICS)[:24]
    ask = topics[topic].gather(1, torch.randint(0, 14, (24, 4)))
    negatives = hard[topic].gather(1, torch.randint(0, 6, (24, 2))).flatten() if hard is not None else topic[:0]
    scores = model(ask) @ model(texts[torch.cat([topic, negatives])]).T * model.log_scale.exp().clamp(max=100)
    loss = F.cross_entropy(scores, torch.arange(24))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 149, 150, 199, 259):
        print(step, loss.item(), model.log_scale.exp().item(), flush=True)
handle.detach()
