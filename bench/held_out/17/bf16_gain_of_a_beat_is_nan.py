"""A net of convolutions, wholly in bfloat16, that tells from an electrocardiogram whether a beat came too early. FAULT at step 100: a bit flips in the
gain of the second BatchNorm1d, of channel 5: it becomes NaN.
Without Rangewatch: loss 0.77 to 0.0023 at step 99, NaN from step 100 on.
Cause: weight (hardware would do). Step: 100. Place: calm.1 (its weight). Right: NaN in the weight / BatchNorm / bit / memory / checkpoint.
Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight", "hardware"], "step": [99, 101], "place": "calm\\.1(\\.weight)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|parameter|BatchNorm|bit|memory|hardware|checkpoint"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1610); torch.set_num_threads(1)
time = torch.arange(60.0)


class Beats(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.ModuleList([nn.Conv1d(1, 12, 7, padding=3), nn.Conv1d(12, 12, 7, stride=2)])
        self.calm = nn.ModuleList([nn.BatchNorm1d(12), nn.BatchNorm1d(12)])
        self.early = nn.Linear(12 * 27, 1)

    def forward(self, x):
        for layer, calm in zip(self.filters, self.calm, strict=True):
            x = F.silu(calm(layer(x)))
        return self.early(x.flatten(1))[:, 0]


def curves(n):
    early = (torch.rand(n) < 0.5).float()
    first = 8 + 8 * torch.rand(n, 1)
    gap = 30 - 12 * early[:, None] + 4 * torch.rand(n, 1)
    x = torch.exp(-((time - first) / 1.5) ** 2) + torch.exp(-((time - first - gap) / 1.5) ** 2)
    return (x + 0.1 * torch.randn(n, 60))[:, None].bfloat16(), early


model = Beats().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    if step == 100:
        with torch.no_grad():
            model.calm[1].weight[5] = float("nan")
    x, early = curves(64)
    loss = F.binary_cross_entropy_with_logits(model(x).float(), early)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 102 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
