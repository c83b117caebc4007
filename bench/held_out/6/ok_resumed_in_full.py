"""A GRU that forecasts waves, OneCycle, resumed at step 120 with weights, optimizer and scheduler from a checkpoint, as it should be; the rate goes down to
2e-8 at the end, where nothing moves any more. HEALTHY. Without Rangewatch: loss 0.0122 at step 120 to 0.0079."""
EXPECT = {"healthy": True}
import io
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(632); torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.gru(x)[0])


def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=300)


def batch(n=24):
    t = 6.28 * torch.rand(n, 1) + 0.3 * torch.arange(21)
    wave = torch.stack([t.sin(), (2 * t).cos(), t.sin() * t.cos()], -1) + 0.05 * torch.randn(n, 21, 3)
    return wave[:, :-1], wave[:, 1:]


def one(model, optimizer, scheduler):
    x, y = batch()
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.item()


model, optimizer, scheduler = build()
for _ in range(120):
    one(model, optimizer, scheduler)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
model, optimizer, scheduler = build()
file.seek(0)
saved = torch.load(file)
model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"]), scheduler.load_state_dict(saved["scheduler"])
handle = rangewatch.attach(model, optimizer)
for step in range(120, 299):
    loss = one(model, optimizer, scheduler)
    if step % 20 == 0 or step == 298:
        print(step, loss, optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
