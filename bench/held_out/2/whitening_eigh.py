"""Group whitening of sensor features: covariance plus a ridge, `eigh`, and the inverse square root built of eigenvectors. FAULT at step 125: in the windows
of another device one board of four sensors is switched off (exact zeros); its features are constant, so all eigenvalues of its group are the ridge: the
forward stays finite, and the backward of eigh divides by the difference of equal eigenvalues. (The next forward ends the run: no eigenvalues of NaN.) Report: pytorch/pytorch#76531
(NaN in linalg.eigh backward), PythonOT/POT#773, pytorch/pytorch#23133.
Cause: backward_arithmetic, step 125, at `filters` (the gradient of its output, or its weight's). Right: the backward of the whitening / eigh.
Wrong: learning rate, mask, precision, scaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [125, 125], "place": "filters(\\..*)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler"], "right": "backward|eig|svd|divi"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(9); torch.set_num_threads(1)
SENSORS, CLASSES, T = 12, 6, 32
freq = 0.2 + torch.rand(CLASSES, SENSORS) * 1.5

def zca(x, groups=3, ridge=1e-3):                      # (N, C)
    x = (x - x.mean(0)).unflatten(1, (groups, -1)).transpose(0, 1)
    cov = x.mT @ x / x.shape[1] + ridge * torch.eye(x.shape[2])
    lam, v = torch.linalg.eigh(cov)
    return (x @ (v * lam.rsqrt().unsqueeze(1)) @ v.mT).transpose(0, 1).flatten(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(SENSORS, SENSORS, 7, groups=SENSORS, bias=False)
        self.mlp = nn.Sequential(nn.Linear(SENSORS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    def forward(self, x):
        f = self.filters(x).square().mean(-1)
        return self.mlp(zca(f))

def windows(step, n=64):
    y = torch.randint(0, CLASSES, (n,))
    t = torch.arange(T, dtype=torch.float32)
    x = torch.sin(freq[y][:, :, None] * t + 6.28 * torch.rand(n, SENSORS, 1)) + 0.3 * torch.randn(n, SENSORS, T)
    if step >= 125:
        x[:, 4:8] = 0.0
    return x, y

net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3)
h = rangewatch.attach(net, opt)
for step in range(200):
    x, y = windows(step)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward()
    g = net.filters.weight.grad
    opt.step()
    h.log(loss=loss.item())
    if step % 25 == 0 or 123 <= step < 128:
        print(step, loss.item(), g.abs().max().item())
