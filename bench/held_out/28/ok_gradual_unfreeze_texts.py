"""Fine-tuning in stages: a backbone trained before (here, for 60 steps) goes on frozen with a new head, then its upper layer is unfrozen and added to the optimizer with a smaller rate. HEALTHY.
Without Rangewatch: loss 1.50 to 0.93 to 1.08, slow and noisy."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(81); torch.set_num_threads(1)
V = 120
meaning = torch.randn(V, 4)


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(V, 32)
        self.lower, self.upper = nn.Linear(32, 48), nn.Linear(48, 48)
        self.head = nn.Linear(48, 4)

    def forward(self, ids):
        return self.head(F.gelu(self.upper(F.gelu(self.lower(self.bag(ids))))))


def texts(n, task):
    ids = torch.randint(0, V, (n, 12))
    topic = meaning[ids].sum(1)
    return ids, topic.argmax(1) if task == 0 else (topic[:, 0] > topic[:, 1]).long() + 2 * (topic[:, 2] > 0).long()


net = Texts()
body = [net.bag, net.lower, net.upper]
pre = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(60):
    ids, y = texts(64, 0)
    pre.zero_grad()
    F.cross_entropy(net(ids), y).backward()
    pre.step()
pre.zero_grad(set_to_none=True)
for m in body:
    m.requires_grad_(False)
net.head.reset_parameters()
optimizer = torch.optim.AdamW(net.head.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    if step == 100:
        net.upper.requires_grad_(True)
        optimizer.add_param_group({"params": list(net.upper.parameters()), "lr": 1e-3})
    ids, y = texts(64, 1)
    loss = F.cross_entropy(net(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
