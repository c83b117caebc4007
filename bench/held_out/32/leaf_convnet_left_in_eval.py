"""A convnet with batch norm and dropout tells six kinds of leaf on 160 small pictures whose labels amateurs gave (a third are wrong), so that dropout is all that holds it from learning them by heart, Adam. FAULT at step 100: the validation at the end of step 99 calls
`model.eval()` and nobody calls `model.train()` again: no dropout any more, and the batch norms keep the running statistics of step 99 for good.
Without Rangewatch: loss 2.5 to some 1.2 at step 99, then 0.8 and 0.008 at the end (the wrong labels learned by heart); validation accuracy 0.93, 0.94, 0.87, 0.84, 0.85 (with train(): 0.967).
Cause: eval. Step: 100. Right: model.train() / eval mode. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["eval"], "step": [99, 106], "place": None, "rank": None,
          "right": "(?i)train\\(\\)|eval|training mode|running stat", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(403); torch.set_num_threads(1)
kinds = F.interpolate(torch.randn(6, 1, 6, 6), size=16, mode="bilinear")


def pictures(n, wrong):
    y = torch.randint(0, 6, (n,))
    x = kinds[y] + 1.2 * torch.randn(n, 1, 16, 16)
    return x, torch.where(torch.rand(n) < wrong, torch.randint(0, 6, (n,)), y)


train_x, train_y = pictures(160, 0.4)
val_x, val_y = pictures(512, 0.0)
model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.3),
    nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.3),
    nn.Flatten(), nn.Dropout(0.6), nn.Linear(384, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


@torch.no_grad()
def validate():
    model.eval()
    out = model(val_x)
    return F.cross_entropy(out, val_y).item(), (out.argmax(1) == val_y).float().mean().item()


handle = rangewatch.attach(model, optimizer)
for step in range(300):
    i = torch.randint(0, 160, (32,))
    loss = F.cross_entropy(model(train_x[i]), train_y[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (99, 149, 199, 249, 299):
        print("validation loss %.3f accuracy %.3f" % validate(), flush=True)
    if step % 20 == 0 or step in (99, 100, 101, 102, 299):
        print(step, loss.item(), "training mode", model.training, flush=True)
    handle.log(loss=loss.item())
handle.detach()
