"""An autoencoder of height maps by convolution and transposed convolution. FAULT at step 100: to make it ready for export in bytes the output is rounded to
1/255 in training too, without a straight-through estimator; the derivative of round is 0, so each gradient of the net is exactly 0 from then on.
Without Rangewatch: loss 0.29 to 0.055 at step 100, 0.05 to 0.08 with the batches after it, no better at step 209; the largest gradient is
0.03 at step 99 and exactly 0 from step 100 on.
Causes: no_gradient, backward_arithmetic. Right: gradient / zero / round / detach. Wrong: lower the rate, mask, clip."""
EXPECT = {"cause": ["no_gradient", "backward_arithmetic"], "step": [100, 209], "place": None, "rank": 0,
          "right": "(?i)gradient|zero|round|detach|graph", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2308); torch.set_num_threads(1)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(16, 24, 4, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.LeakyReLU(0.1), nn.ConvTranspose2d(16, 1, 4, 2, 1))
        self.bytes = False

    def forward(self, x):
        y = self.up(self.down(x))
        return torch.round(y * 255) / 255 if self.bytes else y


model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    model.bytes = step >= 100
    x = F.interpolate(torch.rand(16, 1, 5, 5), size=16, mode="bicubic", align_corners=True)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 209:
        print(step, loss.item(), "largest gradient", max(p.grad.abs().max().item() for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
