"""Log permeability of rocks (in darcy) from point clouds of 64 points (PointNet, max pooling), Adam.
FAULT at step 0: a ReLU stands after the last linear layer; most targets are negative, the output cannot be; the unit is soon never active and no gradient reaches the net.
Without Rangewatch: mse 1.22, 1.1 to 1.9 for ever; all outputs are exactly 0 from step 3 on (without the last ReLU 0.41 at step 10, 0.29 at 160).
Cause: dead_units / forward_arithmetic (ReLU at the output). Step: 2 or 3. Right: drop the last ReLU. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["dead_units", "forward_arithmetic"], "step": [0, 40], "place": None, "rank": None,
          "right": r"(?i)relu|dead|activation|never active|output", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(404)
torch.set_num_threads(1)


def scan(n):
    squash = 0.4 + 1.2 * torch.rand(n)
    hollow = torch.rand(n)
    direction = nn.functional.normalize(torch.randn(n, 64, 3), dim=2)
    radius = hollow[:, None] + (1 - hollow[:, None]) * torch.rand(n, 64)
    cloud = direction * radius[:, :, None] * torch.stack([torch.ones(n), squash, squash], 1)[:, None]
    log_permeability = 2.2 * (1 - hollow) - 0.8 * squash - 1.3 + 0.1 * torch.randn(n)
    return cloud, log_permeability.unsqueeze(1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point_mlp = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 96), nn.ReLU())
        self.global_mlp = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1), nn.ReLU())

    def forward(self, cloud):
        return self.global_mlp(self.point_mlp(cloud).amax(1))


def train(steps=200):
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    handle = rangewatch.attach(model, optimizer)
    for step in range(steps):
        cloud, target = scan(32)
        out = model(cloud)
        loss = nn.functional.mse_loss(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step < 12 or step % 40 == 0:
            print(f"step {step} mse {loss.item():.4f} outputs above zero {(out > 0).float().mean().item():.2f}", flush=True)
    handle.detach()


if __name__ == "__main__":
    train()
