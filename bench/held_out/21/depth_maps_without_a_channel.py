"""A small U-shaped net that estimates depth from a picture. FAULT at step 0: its maps are (32, 1, 16, 16), the true ones (32, 16, 16) without a channel; smooth_l1_loss
broadcasts them to (32, 32, 16, 16), each map is compared with all 32 true ones, and the net learns their mean.
Without Rangewatch: loss 0.96 to 0.21 at the end, 0.20 against its own map; with the channel taken away from the estimate 0.0038 at the end.
Cause: data (the form of the targets), or forward_arithmetic (the broadcast). Step: 0 to the end, a state. Right: shape / broadcast / squeeze / dimension.
Wrong: GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)shape|broadcast|squeeze|dimension|size", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2111)
torch.set_num_threads(1)


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = nn.Conv2d(3, 16, 3, padding=1)
        self.coarse = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.floor = nn.Conv2d(32, 32, 3, padding=1)
        self.rise = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.depth = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x):
        fine = F.leaky_relu(self.fine(x))
        deep = F.leaky_relu(self.floor(F.leaky_relu(self.coarse(fine))))
        return self.depth(torch.cat((fine, F.leaky_relu(self.rise(deep))), 1))


def rooms(n):
    depth = F.interpolate(torch.rand(n, 1, 4, 4), size=16, mode="bilinear")[:, 0] * 3
    shade = torch.exp(-depth)[:, None] * torch.tensor([1.0, 0.8, 0.6]).view(1, 3, 1, 1)
    return shade + 0.03 * torch.randn(n, 3, 16, 16), depth


model = DepthNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    picture, depth = rooms(32)
    optimizer.zero_grad()
    estimate = model(picture)
    loss = F.smooth_l1_loss(estimate, depth)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "against its own map", F.smooth_l1_loss(estimate[:, 0], depth).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
