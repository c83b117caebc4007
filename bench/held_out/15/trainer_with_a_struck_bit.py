"""A convolutional net that makes maps of rain finer, under a small Trainer that clips the gradient. FAULT before step 115: bit 30 of one weight of layers.2
flips; the weight becomes 1.3e37.
Without Rangewatch: loss 0.37 to 0.127 at step 114 (largest weight 0.29), inf from step 115 to the end (largest weight 1.3e37).
Cause: hardware or weight. Step: 115. Place: layers.2.weight. Right: bit / memory / weight. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["hardware", "weight"], "step": [114, 117], "place": ".*(layers\\.2).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "bit|hardware|memory|weight|flip|ECC"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1520); torch.set_num_threads(1)


class Upscale(nn.Module):
    """A map of rain of 8 by 8 to one of 16 by 16."""
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU())
        self.expand = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x):
        return F.pixel_shuffle(self.expand(self.layers(x)), 2)


def rain(n):
    noise = F.avg_pool2d(torch.randn(n, 1, 22, 22), 7, 1) * 4
    fine = torch.relu(noise + 0.3)
    return F.avg_pool2d(fine, 2), fine


class Trainer:
    def __init__(self, model, optimizer, steps):
        self.model, self.optimizer, self.steps, self.history = model, optimizer, steps, []
        self.handle = rangewatch.attach(model, optimizer)

    def training_step(self, batch):
        loss = F.l1_loss(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def train(self):
        for step in range(self.steps):
            if step == 115:  # a cosmic ray: bit 30 of one weight, the highest of the exponent
                bits = self.model.layers[2].weight.detach().view(torch.int32)
                bits[5, 3, 1, 1] ^= 1 << 30
            self.history.append(self.training_step(rain(16)))
            if step % 20 == 0 or 113 < step < 118 or step == self.steps - 1:
                print(step, self.history[-1], "largest weight", self.model.layers[2].weight.abs().max().item(), flush=True)
            self.handle.log(loss=self.history[-1])
        self.handle.detach()


upscale = Upscale()
Trainer(upscale, torch.optim.AdamW(upscale.parameters(), lr=3e-3), 200).train()
