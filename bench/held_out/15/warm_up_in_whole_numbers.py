"""An LSTM for the strength of a password, with a slow warm-up of the encoder. FAULT from the start: the share of the warm-up is step // 400 in place of
step / 400, so the rate of the encoder is zero, and only the head learns.
Without Rangewatch: loss 1.70 to 1.04 at step 60, 0.65 to 1.3 to the end, the rate of the first group is 0.0; with / it is 0.037 at the end.
Cause: learning_rate (of one group). Step: 0. Place: encoder. Right: learning rate / zero / group / warm-up. Wrong: lower the rate, mask, dead units."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 120], "place": ".*(encoder|token|read).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "dead units", "[Ll]ower the learning rate"],
          "right": "learning rate|rate|lr|zero|group|schedul|warm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1528); torch.set_num_threads(1)
LETTERS, T, WARM = 30, 14, 400
worth = torch.randn(LETTERS)


class Password(nn.Module):
    """The strength of a password, from its letters."""
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"token": nn.Embedding(LETTERS, 4), "read": nn.LSTM(4, 16, batch_first=True)})
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.encoder["read"](self.encoder["token"](x))[0].mean(1))[:, 0]


def passwords(n):
    x = torch.randint(0, LETTERS, (n, T))
    return x, worth[x].mean(1) * 3 + (x[:, :, None] == x[:, None]).float().mean((1, 2)) * 3


model = Password()
optimizer = torch.optim.AdamW([{"params": model.encoder.parameters(), "lr": 2e-2}, {"params": model.head.parameters(), "lr": 3e-3}])
# the encoder is warmed up; // for / makes it 0 until step 400
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: min(1, step // WARM), lambda step: min(1.0, (step + 1) / 10)])
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = passwords(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "rates", [g["lr"] for g in optimizer.param_groups], flush=True)
    handle.log(loss=loss.item())
handle.detach()
