"""HEALTHY. A net that finds four diseases of leaves. Every 10 steps a batch of leaves is examined without gradient, and the recall of rust is logged beside
the loss; where no leaf of the batch has rust, it is 0 over 0 and NaN, and that is the honest answer. Nothing of it goes into the training.
Without Rangewatch: loss 1.43 to 0.007 at the end; the recall is NaN at 6 of 20 examinations and 1.0 at the others."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1630); torch.set_num_threads(1)
mark = torch.randn(4, 3, 6, 6)
often = torch.tensor([0.5, 0.3, 0.15, 0.05])
RUST = 3


def leaves(n):
    disease = torch.multinomial(often, n, replacement=True)
    return mark[disease] + 1.5 * torch.randn(n, 3, 6, 6), disease


model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.InstanceNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 4))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, disease = leaves(64)
    loss = F.cross_entropy(model(x), disease)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logged = {"loss": loss.item()}
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            x, disease = leaves(24)
            found = (model(x).argmax(1) == RUST) & (disease == RUST)
            logged["rust_recall"] = (found.sum() / (disease == RUST).sum()).item()
        model.train()
        print(step, logged, flush=True)
    handle.log(**logged)
handle.detach()
