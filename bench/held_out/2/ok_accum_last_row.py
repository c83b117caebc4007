"""A sentence-pair scorer in bf16 autocast whose gradient accumulation goes from 1 to 4 to 16 micro-batches; each epoch's last micro-batch is one single row, and the
micro-batches left at an epoch's end make a smaller step. HEALTHY: step size, gradient noise and the loss of that one row vary, the loss falls."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(23); torch.set_num_threads(1)

class Pairs(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.EmbeddingBag(400, d)
        self.tower = nn.Sequential(nn.Linear(d, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, d))
        self.scale = nn.Parameter(torch.tensor(1.0))
    def forward(self, a, b):
        a, b = self.tower(self.emb(a)), self.tower(self.emb(b))
        return (nn.functional.normalize(a, dim=-1) * nn.functional.normalize(b, dim=-1)).sum(-1) * self.scale * 5

N = 8 * 60 + 1
topic = torch.randint(0, 20, (N, 2))
topic[: N // 2, 1] = topic[: N // 2, 0]
words = topic[:, :, None] * 20 + torch.randint(0, 20, (N, 2, 8))
label = (topic[:, 0] == topic[:, 1]).float()
loader = DataLoader(TensorDataset(words, label), batch_size=8, shuffle=True)
model = Pairs()
opt = torch.optim.AdamW(model.parameters(), 3e-3)
h = rangewatch.attach(model, opt)
step = 0
for epoch in range(9):
    every = 1 if epoch < 3 else 4 if epoch < 6 else 16
    total, count = 0.0, 0
    for i, (pair, y) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16):
            logit = model(pair[:, 0], pair[:, 1])
        loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), y)
        (loss / every).backward()
        total, count = total + loss.item(), count + 1
        if count == every or i + 1 == len(loader):
            opt.step(); opt.zero_grad()
            h.log(loss=total / count)
            step += 1; last = total / count; total, count = 0.0, 0
    print("epoch", epoch, "steps", step, "last", round(last, 4), "rows in it", len(y))
