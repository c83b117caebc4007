"""Topic of papers in a citation graph (500 nodes, dense adjacency, three graph convolutions), full batch, Adam.
FAULT at step 0: the hidden layers sit in a plain Python list, so model.parameters() does not hold them: only `embed` and `out` are trained.
Without Rangewatch: loss 1.79, 0.98 at epoch 100, 0.36 at 199 (with ModuleList 0.12); model.parameters() counts 2150 instead of 5318, the hidden weights move by 0.0000.
Cause: optimizer (does not hold the hidden layers) / no_gradient. Step: from 0. Right: nn.ModuleList. Wrong: GradScaler, clip, attention mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)ModuleList|regist|plain list|python list|parameters\(\)|not (held|in|trained|known)|no optimi[sz]er", "wrong": ["GradScaler", r"(?i)clip (the )?grad", r"(?i)attention mask"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(1900)
torch.set_num_threads(1)
NODES, TOPICS, WORDS = 500, 6, 60
topic = torch.randint(0, TOPICS, (NODES,))
same = (topic[:, None] == topic[None, :]).float()
link = (torch.rand(NODES, NODES) < 0.006 + 0.02 * same).float().triu(1)
adj = link + link.T + torch.eye(NODES)
deg = adj.sum(1)
adj = adj / (deg[:, None] * deg[None, :]).sqrt()
words = (torch.rand(NODES, WORDS) < 0.08 + 0.10 * torch.rand(TOPICS, WORDS).pow(3)[topic]).float()
train_nodes = torch.randperm(NODES)[:250]


class GraphConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cin, cout))
        self.bias = nn.Parameter(torch.zeros(cout))
        nn.init.xavier_uniform_(self.weight, gain=0.7)

    def forward(self, h, a):
        return a @ (h @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=32, depth=3):
        super().__init__()
        self.embed = nn.Linear(WORDS, hidden)
        self.hidden_layers = [GraphConv(hidden, hidden) for _ in range(depth)]
        self.out = nn.Linear(hidden, TOPICS)

    def forward(self, x, a):
        h = F.relu(self.embed(x))
        for layer in self.hidden_layers:
            h = F.relu(layer(h, a))
        return self.out(h)


net = GCN()
first = [layer.weight.detach().clone() for layer in net.hidden_layers]
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
handle = rangewatch.attach(net, opt)
for epoch in range(200):
    net.train()
    opt.zero_grad()
    logits = net(words, adj)
    loss = F.cross_entropy(logits[train_nodes], topic[train_nodes])
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if epoch % 20 == 0 or epoch == 199:
        moved = max((a - l.weight).abs().max().item() for a, l in zip(first, net.hidden_layers))
        print(f"epoch {epoch} loss {loss.item():.4f}, hidden weights moved by {moved:.4f}, {sum(p.numel() for p in net.parameters())} parameters", flush=True)
handle.detach()
