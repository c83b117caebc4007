"""Customer churn from a synthetic contract table: categorical embeddings plus numeric columns in an MLP, SGD with momentum.
FAULT at step 0: natural. Nobody calls optimizer.zero_grad(): every backward adds to the gradients of all the steps before.
Without Rangewatch: mean loss of epochs 1.06, 3.2, 14, 25, 34, 71, accuracy about 0.5; with zero_grad 0.412 and 0.81 in epoch 5.
Cause: gradients_kept. Step: 0 to 150. Right: zero_grad. Wrong: GradScaler, mask, raise the learning rate."""
EXPECT = {"cause": ["gradients_kept"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)zero_grad|zeroed|clear(ed)? the grad|accumulat", "wrong": ["GradScaler", "(?i)attention mask", "(?i)raise the learning rate", "(?i)warm-?up is too short"]}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(77)
torch.set_num_threads(1)

N = 4096
plan = torch.randint(0, 5, (N,))
region = torch.randint(0, 12, (N,))
numeric = torch.randn(N, 6)
risk = torch.tensor([1.2, 0.3, -0.5, -1.0, 0.6])[plan] + 0.9 * numeric[:, 0] - 1.3 * numeric[:, 1] * (numeric[:, 2] > 0) + 0.2 * (region % 3 - 1)
churned = (torch.rand(N) < torch.sigmoid(1.8 * risk)).float()
loader = DataLoader(TensorDataset(plan, region, numeric, churned), batch_size=64, shuffle=True, drop_last=True)


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.plan_emb = nn.Embedding(5, 4)
        self.region_emb = nn.Embedding(12, 6)
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)

    def forward(self, plan, region, numeric):
        x = torch.cat([self.plan_emb(plan), self.region_emb(region), numeric], dim=1)
        return self.out(self.body(x)).squeeze(1)


net = ChurnNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
step = 0
for epoch in range(6):
    running = correct = 0.0
    for p, r, n, target in loader:
        logits = net(p, r, n)
        loss = criterion(logits, target)
        loss.backward()
        optimizer.step()
        running += loss.item()
        correct += ((logits > 0).float() == target).float().mean().item()
        handle.log(loss=loss.item())
        step += 1
    print(f"epoch {epoch} step {step} train loss {running / len(loader):.4f} acc {correct / len(loader):.3f}", flush=True)
handle.detach()
