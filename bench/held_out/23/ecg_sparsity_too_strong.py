"""Heart beats sorted by a residual net of one-dimensional convolutions. FAULT from step 80 on: a penalty on the mean activation of the second convolution
is switched on to make it sparse, with weight 500 where 0.05 was meant; its ReLUs are pushed below zero for each input and give 0 for good.
Without Rangewatch: loss 1.42 to 0.009 at step 79, 370 at step 80 (the penalty), 1.39 = log(4) from step 120 to the end; 63 % of the activations
are above 0 at step 79, 6 % at step 100, none from step 120 on; with 0.05 the loss is 0.02 and 34 % are above 0 at the end.
Causes: dead_units, regularization, no_gradient. Right: ReLU / dead / penalty / bias. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "regularization", "no_gradient"], "step": [80, 239], "place": "((conv1|conv2|relu2).*)?", "rank": 0,
          "right": "(?i)relu|dead|penalt|regulari|bias|zero", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2309); torch.set_num_threads(1)


class Beats(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.relu1 = nn.Conv1d(2, 24, 7, padding=3), nn.ReLU()
        self.conv2, self.relu2 = nn.Conv1d(24, 24, 5, padding=2), nn.ReLU()
        self.conv3, self.relu3 = nn.Conv1d(24, 24, 5, padding=2), nn.ReLU()
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        a = self.relu1(self.conv1(x))
        self.inner = self.relu2(self.conv2(a))
        return self.out(self.relu3(self.conv3(self.inner)).amax(2))


model = Beats()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
t = torch.arange(64) / 64
for step in range(240):
    y = torch.randint(0, 4, (32,))
    centre = 0.3 + 0.4 * torch.rand(32, 1)
    width = torch.tensor([0.02, 0.05, 0.02, 0.05])[y][:, None]
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0])[y][:, None]
    x = torch.stack((sign * torch.exp(-((t - centre) / width) ** 2), torch.exp(-((t - centre - 0.2) / 0.08) ** 2)), 1)
    x = x + 0.1 * torch.randn_like(x)
    loss = F.cross_entropy(model(x), y) + (500.0 if step >= 80 else 0.0) * model.inner.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 78 < step < 83 or step == 239:
        print(step, loss.item(), "alive", (model.inner > 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
