"""A small fully convolutional net that counts cells by a density map. FAULT from about step 26 on: the configuration is that of eight GPUs with four
pictures each, SGD with a learning rate of 0.016; here it runs on one GPU. The warm-up of 150 steps goes towards it and the training diverges on the way.
Without Rangewatch: loss 42 to 22 at step 16, 43 at step 26 (rate 0.0029), 559 at step 28, 1.4e6 at step 32, NaN from step 34 on; with a rate of 0.002 it
falls to 5 to 8.
Report: facebookresearch/maskrcnn-benchmark#295 (the rate of 8 GPUs kept for one: NaN), facebookresearch/maskrcnn-benchmark#831, CharlieDinh/pFedMe#11,
JiahuiYu/wdsr_ntire2018#36.
Cause: learning_rate. Step: 20 to 34. Right: learning rate / diverge / warm-up / step size. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [18, 36], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|diverg|warm-?up|step size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1003); torch.set_num_threads(1)
RATE, WARMUP = 0.016, 150
grid = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij"))


class DensityNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.density = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        x = self.down(x)
        return self.density(F.interpolate(x + self.middle(x), scale_factor=2, mode="bilinear"))


def slide():
    """Between three and fifteen round cells, and where their centres are."""
    picture, target = torch.zeros(24, 24), torch.zeros(24, 24)
    for _ in range(int(torch.randint(3, 16, (1,)))):
        centre = torch.rand(2, 1, 1) * 20 + 2
        far = ((grid - centre) ** 2).sum(0)
        picture += torch.exp(-far / 4)
        target += torch.exp(-far / 2)
    return picture[None] + 0.1 * torch.randn(1, 24, 24), target[None]


model = DensityNet()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = (torch.stack(v) for v in zip(*(slide() for _ in range(4)), strict=True))
    loss = F.mse_loss(model(x), y, reduction="sum") / len(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step % 2 == 0 and step < 60:
        print(step, loss.item(), "rate", scheduler.get_last_lr()[0], flush=True)
    scheduler.step()
    handle.log(loss=loss.item())
handle.detach()
