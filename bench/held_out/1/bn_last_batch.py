"""Tabular MLP with BatchNorm1d, DataLoader without drop_last, 5441 = 170 * 32 + 1 rows. FAULT at step 170: the epoch's last batch has one
row, and BatchNorm1d raises "Expected more than 1 value per channel when training". Report: pytorch/pytorch#4534, torch/nn#1271.
Cause: crash, step 170 (169 is the last one that ended), rank 0. Right: the exception / the batch. Wrong: learning rate, mask, bf16."""
EXPECT = {"cause": ["crash"], "step": [169, 170], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "memory"], "right": "ValueError|Expected more than 1|exception|[Tt]raceback|drop_last|batch|raised"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
x = torch.randn(5441, 24)
y = (x[:, :6].prod(1).tanh() + x[:, 6:9].sum(1) + 0.2 * torch.randn(5441))[:, None]
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
net = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for epoch in range(3):
    for features, target in loader:
        loss = F.huber_loss(net(features), target)
        opt.zero_grad(); loss.backward(); opt.step()
        watch.log(loss=loss.item())
    print(epoch, loss.item())
