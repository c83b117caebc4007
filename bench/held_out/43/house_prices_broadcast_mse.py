"""House prices from 13 columns (tabular MLP, Adam, standardised target, DataLoader) (the thread: 'UserWarning: Using a target size ... network predicts the mean').
FAULT at step 0: the model gives (N, 1), the targets are (N,); MSE broadcasts to N x N, each prediction is compared with all prices, and the best answer is the mean.
Without Rangewatch: loss 1.005 in the first epoch, 1.001 in the ninth; predictions spread by 0.02, prices by 1.
Cause: forward_arithmetic (loss on broadcast shapes) / data. Step: from 0. Right: squeeze the output or unsqueeze the target. Wrong: lower the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [0, 200], "place": None, "rank": None,
          "right": r"(?i)shape|broadcast|squeeze|target size|\(N, ?1\)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import warnings
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
import rangewatch

warnings.filterwarnings("ignore")
torch.manual_seed(1); torch.set_num_threads(1)


class Houses(Dataset):
    def __init__(self, n=2048):
        self.X = torch.randn(n, 13)
        y = 2 * self.X[:, 0] + self.X[:, 1] * self.X[:, 2] - self.X[:, 3].abs() + 0.3 * torch.randn(n)
        self.y = (y - y.mean()) / y.std()

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], self.y[i]


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.layers(x)


mlp = Regressor()
loss_function = nn.MSELoss()
optimizer = torch.optim.Adam(mlp.parameters(), lr=2e-3)
handle = rangewatch.attach(mlp, optimizer)
trainloader = DataLoader(Houses(), batch_size=64, shuffle=True)
step = 0
for epoch in range(9):
    current = 0.0
    for inputs, targets in trainloader:
        optimizer.zero_grad()
        outputs = mlp(inputs)
        loss = loss_function(outputs, targets)
        loss.backward()
        optimizer.step()
        current += loss.item()
        step += 1
    print(f"epoch {epoch} step {step} loss {current / len(trainloader):.4f} spread of the predictions {outputs.std().item():.3f} of the prices {targets.std().item():.3f}", flush=True)
handle.detach()
