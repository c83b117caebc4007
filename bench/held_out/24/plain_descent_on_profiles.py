"""A gated conv autoencoder of one-dimensional profiles trained with plain SGD. FAULT from step 0 on: the rate is 4.0, meant as 0.04; the loss leaves the scale at once.
Without Rangewatch: loss 3.0, 8.4, 1e15 at steps 0 to 2, NaN from step 3 on.
Cause: learning_rate. Step: 0 to 10. Right: lower the learning rate. Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 10], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2416); torch.set_num_threads(1)


class Glu(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv = nn.Conv1d(i, 2 * o, 5, stride, 2)

    def forward(self, x):
        return nn.functional.glu(self.conv(x), 1)


encoder = nn.Sequential(Glu(1, 24, 2), Glu(24, 24, 2), nn.Conv1d(24, 4, 1))
decoder = nn.Sequential(nn.Upsample(scale_factor=2), Glu(4, 24, 1), nn.Upsample(scale_factor=2), nn.Conv1d(24, 1, 5, padding=2))
coder = nn.Sequential(encoder, decoder)
optimizer = torch.optim.SGD(coder.parameters(), lr=4.0)
handle = rangewatch.attach(coder, optimizer)
x = torch.linspace(0, 6.28, 32)
for step in range(160):
    a, f, p = 2 * torch.randn(32, 1), 1 + torch.rand(32, 1) * 3, 6.28 * torch.rand(32, 1)
    profile = (a * torch.sin(f * x + p) + torch.randn(32, 1))[:, None]
    loss = (coder(profile) - profile).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 8 or step == 159:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
