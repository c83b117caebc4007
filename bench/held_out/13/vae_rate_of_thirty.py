"""A variational autoencoder of small pictures. FAULT at step 110: a typo in the table of rates gives 30 instead of 0.0003 (Adam) from then on.
Without Rangewatch: loss 54.8 to 12.9 at step 109, 15.3 at 110, NaN from step 111 on.
Variant of: gan_with_lr_50_at_step_100.
Cause: learning_rate. Step: 110. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [109, 114], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1318); torch.set_num_threads(1)
RATES = {0: 0.003, 110: 30}  # meant: 110: 0.0003


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(400, 48), nn.ReLU(), nn.Linear(48, 8))
        self.decode = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 100))

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.decode(z).view(-1, 1, 10, 10), mean, log_var


def pictures(n):
    x, y = torch.meshgrid(torch.linspace(-1, 1, 10), torch.linspace(-1, 1, 10), indexing="ij")
    a, b, c = (2 * torch.rand(n, 1, 1, 1) - 1 for _ in range(3))
    return torch.sin(3 * (a * x + b * y) + 2 * c)


model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step in RATES:
        optimizer.param_groups[0]["lr"] = RATES[step]
    x = pictures(32)
    back, mean, log_var = model(x)
    kl = -0.5 * (1 + log_var - mean ** 2 - log_var.exp()).sum(1).mean()
    loss = F.mse_loss(back, x, reduction="none").sum((1, 2, 3)).mean() + 0.1 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 115:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
