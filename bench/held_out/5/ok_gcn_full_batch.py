"""A two-layer graph convolutional network on one graph, full batch: the same nodes, edges and twenty labels a class at every step, as is usual;
dropout and weight decay on the first layer alone; accuracy of all nodes is looked at in eval mode. The training loss falls to where only dropout
speaks. HEALTHY. Without Rangewatch: loss 1.61 to 0.4, accuracy of all nodes 0.24 to 0.76."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(534); torch.set_num_threads(1)
NODES, CLASSES, WORDS = 600, 5, 120
label = torch.randint(0, CLASSES, (NODES,))
same = label[:, None] == label[None, :]
edge = (torch.rand(NODES, NODES) < torch.where(same, 0.03, 0.004)).float().triu(1)
edge = edge + edge.T + torch.eye(NODES)
adjacency = edge / (edge.sum(1, keepdim=True) * edge.sum(0, keepdim=True)).sqrt()
x = (torch.rand(NODES, WORDS) < 0.02 + 0.03 * ((torch.arange(WORDS) % CLASSES)[None] == label[:, None])).float()
x = x / x.sum(1, keepdim=True).clamp(min=1)
train = torch.cat([(label == c).nonzero().flatten()[:20] for c in range(CLASSES)])


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.dropout = nn.Linear(WORDS, 32, bias=False), nn.Linear(32, CLASSES), nn.Dropout(0.5)

    def forward(self, x):
        h = F.relu(adjacency @ self.one(self.dropout(x)))
        return adjacency @ self.two(self.dropout(h))


model = GCN()
optimizer = torch.optim.Adam([{"params": model.one.parameters(), "weight_decay": 5e-4}, {"params": model.two.parameters()}], lr=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = F.cross_entropy(model(x)[train], label[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        model.eval()
        with torch.no_grad():
            right = (model(x).argmax(1) == label).float().mean().item()
        model.train()
        print(step, loss.item(), right, flush=True)
handle.detach()
