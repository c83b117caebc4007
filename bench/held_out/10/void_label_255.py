"""A small U-Net that sorts the pixels of an aerial picture into four covers of land. FAULT at step 110: the first tile with a border that nobody drew;
the map gives it the value 255, the loss is made without ignore_index=255, and cross_entropy raises.
Without Rangewatch: loss to 0.145 at step 109; "IndexError: Target 255 is out of bounds." at step 110.
Report: VainF/DeepLabV3Plus-Pytorch#91, milesial/Pytorch-UNet#291, open-mmlab/mmsegmentation#3216 and #1553 ("Target ... is out of bounds").
Cause: crash (or data: a label out of range). Step: 110. Right: raised / IndexError / label / target / ignore_index. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["crash", "data"], "step": [109, 111], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "IndexError|out of bounds|label|target|rais|exception|ignore_index"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1008); torch.set_num_threads(1)
COVERS = 4
colour = torch.randn(COVERS, 3)


class LandNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.up, self.cover = nn.Conv2d(48, 16, 3, padding=1), nn.Conv2d(16, COVERS, 1)

    def forward(self, x):
        fine = F.relu(self.down1(x))
        coarse = F.relu(self.down2(F.max_pool2d(fine, 2)))
        coarse = F.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.cover(F.relu(self.up(torch.cat((fine, coarse), 1))))


def tiles(n):
    cover = F.interpolate(torch.rand(n, COVERS, 4, 4), size=(16, 16), mode="bicubic").argmax(1)
    return colour[cover].movedim(3, 1) + 0.7 * torch.randn(n, 3, 16, 16), cover


model = LandNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = tiles(16)
    if step == 110:
        y[6, :2] = 255  # the tile at the edge of the map
    if step % 20 == 0 or step > 107:
        print(step, "largest label", y.max().item(), flush=True)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step > 107:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
