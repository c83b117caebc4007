"""A small fully convolutional net segments round cells, loss = soft Dice, whose sums are taken in float16. First on crops of 48 x 48, from step 130 on on whole pictures of 320 x 320.
FAULT at step 130: the overlap and the areas of a whole picture (about 70 000 pixels) overflow float16 (65 504): inf / inf.
Without Rangewatch: loss 0.43 to 0.085 at step 129, NaN at step 130 and on.
Cause: forward_arithmetic. Step: 130. Right: overflow / float16 / float32 / mean. Wrong: learning rate, mask, corrupt input."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)overflow|float16|half|fp16|float32|bfloat16|sum", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(104); torch.set_num_threads(1)


def pictures(n, size):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    centre, radius = 0.3 * torch.rand(n, 2, 1, 1) - 0.15, 0.95 + 0.1 * torch.rand(n, 1, 1)
    cell = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2 < radius ** 2).float()
    return (0.8 * cell + 0.5 * torch.randn(n, size, size))[:, None], cell


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 8, 5, padding=2)
        self.norm = nn.InstanceNorm2d(8, affine=True)
        self.middle = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return self.out(torch.relu(self.middle(torch.relu(self.norm(self.enter(x))))))[:, 0]


def dice(logits, cell):
    p, t = logits.sigmoid().flatten(1).half(), cell.flatten(1).half()
    overlap, area = (p * t).sum(1), p.sum(1) + t.sum(1)
    return (1 - (2 * overlap + 1) / (area + 1)).float().mean()


net = Segmenter()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(150):
    x, cell = pictures(6, 48) if step < 130 else pictures(2, 320)
    loss = dice(net(x), cell)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
