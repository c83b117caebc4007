"""Segmentation of cells, tiny U-shaped net, in a LightningModule-like class with manual optimisation: 16 micro-batches of 1 per optimizer step (thread: 'gradient accumulation gives a worse result than the big batch').
FAULT at step 0: manual_backward(loss) of each micro-batch without / accumulate; the gradients of 16 micro-batches are summed, the step with SGD is 16 times the one that lr 0.5 was tuned for.
Without Rangewatch: loss 0.72, 2.15 after the first step, then 0.4 to 0.7 up to the end (divided: 0.15 at step 30, 0.12 at the end).
Cause: learning_rate (too large in effect) / forward_arithmetic (loss not divided) / backward_arithmetic (gradients multiplied). Step: 0 to some 60. Right: loss / accumulate, or a lower rate. Wrong: raise the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic", "backward_arithmetic"], "step": [0, 80], "place": None, "rank": None,
          "right": r"(?i)accumul|divide|learning rate|\blr\b|step size", "wrong": [r"(?i)(raise|increase)( the)? learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(14); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")


def micro_batch(n=1):
    mask = torch.zeros(n, 1, 16, 16)
    for i in range(n):
        for _ in range(3):
            cy, cx = torch.rand(2) * 16
            mask[i, 0] = torch.maximum(mask[i, 0], ((yy - cy) ** 2 + (xx - cx) ** 2 < 9).float())
    return mask * 0.8 + 0.5 * torch.randn(n, 1, 16, 16), mask


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down1 = nn.Conv2d(1, c, 3, padding=1)
        self.down2 = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.down1(x))
        b = torch.relu(self.mid(torch.relu(self.down2(a))))
        return self.out(torch.cat([a, torch.relu(self.up(b))], 1))


class LitCells:
    automatic_optimization = False

    def __init__(self, accumulate=16):
        self.net = UNet()
        self.accumulate = accumulate
        self.opt = self.configure_optimizers()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        loss.backward()
        if (batch_idx + 1) % self.accumulate == 0:
            self.opt.step()
            self.opt.zero_grad()
        return loss.item()


lit = LitCells()
handle = rangewatch.attach(lit.net, lit.opt)
seen = []
for batch_idx in range(150 * 16):
    seen.append(lit.training_step(micro_batch(), batch_idx))
    if len(seen) == 16:
        step = batch_idx // 16
        handle.log(loss=sum(seen) / 16)
        if step < 6 or step % 15 == 0:
            print(f"global_step {step} train_loss {sum(seen) / 16:.4f}", flush=True)
        seen = []
handle.detach()
