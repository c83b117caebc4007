"""A temporal convolutional net that finds worn bearings. Every 40 steps it is validated under no_grad(), but nobody calls eval(). FAULT at step 120: a
recording of the validation holds NaN; in training mode the batch norms take it into their running statistics, where it stays.
Without Rangewatch: training goes on as well as before (loss 0.10 at step 120, 0.08 at step 200); validation 0.13 at step 80, NaN from step 120 on,
even with a whole batch in eval mode at the end: the running means of all four batch norms are NaN.
Variant of: batches: evaluation_in_train_mode_poisons_batchnorm.
Cause: data or eval. Step: 120. Place: a batch norm. Right: eval() / running statistics / validation / NaN in the batch. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "eval"], "step": [119, 121], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eval\\(\\)|running|statistic|validation|NaN|batch|input"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1103); torch.set_num_threads(1)
time = torch.arange(96.0)


def layer(a, b, dilation):
    return nn.Sequential(nn.Conv1d(a, b, 3, padding=dilation, dilation=dilation, bias=False), nn.BatchNorm1d(b), nn.SiLU())


class BearingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(layer(2, 16, 1), layer(16, 16, 2), layer(16, 24, 4), layer(24, 24, 8))
        self.worn = nn.Linear(24, 1)

    def forward(self, x):
        return self.worn(self.tower(x).mean(2))[:, 0]


def recordings(n):
    worn = (torch.rand(n) < 0.5).float()
    knock = ((time + torch.randint(0, 12, (n, 1))) % 12 < 2).float() * worn[:, None]
    return torch.randn(n, 2, 96) + 1.2 * knock[:, None], worn


model = BearingNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
held = recordings(64)
for step in range(240):
    x, worn = recordings(32)
    loss = F.binary_cross_entropy_with_logits(model(x), worn)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 and step > 0:
        if step == 120:
            held[0][9, 1, 30:40] = float("nan")  # the validation has been read anew
        with torch.no_grad():
            validation = F.binary_cross_entropy_with_logits(model(held[0]), held[1])
        print(step, loss.item(), "validation", validation.item(), "running mean", model.tower[0][1].running_mean.sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
model.eval()
print("at last, in eval mode", F.binary_cross_entropy_with_logits(model(recordings(64)[0]), worn.repeat(2)).item())
