"""Click-through rates of adverts by a factorisation machine with a small deep part, SGD with momentum and StepLR(step_size=10, gamma=0.5), meant as ten EPOCHS.
FAULT at step 10: scheduler.step() stands inside the batch loop, so the rate halves every 10 batches; at batch 100 it is a thousandth and the training stands still.
Without Rangewatch: loss 1.06 and 0.86 to 1.1 from first to last, rate 4e-4 at batch 80 and 1e-12 at 360 (with no decay in the batch loop: 0.55 at batch 160, 0.30 at 360).
Cause: learning_rate (decays to nothing). Step: builds up from 10 to some 150. Right: step the scheduler once an epoch. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["learning_rate"], "step": [10, 190], "place": None, "rank": None,
          "right": r"(?i)schedul|learning rate.*(small|tiny|low|zero|decay|fell|nothing)|decay", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(99); torch.set_num_threads(1)
FIELDS = [30, 20, 12, 8]
secret = [torch.randn(n, 3) for n in FIELDS]


def impressions(n):
    idx = torch.stack([torch.randint(0, k, (n,)) for k in FIELDS], 1)
    v = torch.stack([s[idx[:, i]] for i, s in enumerate(secret)], 1)
    strength = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
    return TensorDataset(idx, (torch.rand(n) < torch.sigmoid(0.8 * strength)).float())


class DeepFM(nn.Module):
    def __init__(self, k=8):
        super().__init__()
        self.offset = torch.tensor([0] + FIELDS[:-1]).cumsum(0)
        self.first_order = nn.Embedding(sum(FIELDS), 1)
        self.second_order = nn.Embedding(sum(FIELDS), k)
        self.deep = nn.Sequential(nn.Linear(4 * k, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.normal_(self.second_order.weight, std=0.3)

    def forward(self, idx):
        idx = idx + self.offset
        v = self.second_order(idx)
        fm = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.first_order(idx).sum((1, 2)) + fm + self.deep(v.flatten(1)).squeeze(1)


loader = DataLoader(impressions(8192), batch_size=128, shuffle=True)
model = DeepFM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = StepLR(optimizer, step_size=10, gamma=0.5)
handle = rangewatch.attach(model, optimizer)
seen = 0
for epoch in range(6):
    for idx, clicked in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(idx), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        handle.log(loss=loss.item())
        if seen % 40 == 0:
            print(f"epoch {epoch} batch {seen} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
        seen += 1
handle.detach()
