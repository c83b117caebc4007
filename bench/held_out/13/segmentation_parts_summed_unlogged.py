"""A net marks nuclei in pictures; from step 100 on a step is of 32 microbatches instead of one. FAULT at step 100: their losses are not divided by 32: the
gradients are the sum, 32 times what they were, and SGD with momentum at an unchanged rate jumps about. The script logs no loss to Rangewatch.
Without Rangewatch: loss 0.64 to 0.12 at step 99, 10.5 at step 103, 2.5 at 106, 1.5 at 120, 0.46 at the end.
Variant of: microbatches_of_words_are_summed_and_no_loss_is_logged.
Cause: learning_rate (the step is 32 times as long) or optimizer. Step: 100. Right: accumulate / divide / microbatch / rate / clip. Wrong: GradScaler,
mask."""
EXPECT = {"cause": ["learning_rate", "optimizer", "clip"], "step": [99, 112], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "accumul|divid|micro-?batch|learning rate|clip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1314); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij"))


class NucleusNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.c, self.mark = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 1, 1)

    def forward(self, x):
        h = F.relu(self.b(F.relu(self.a(x))))
        return self.mark(h + F.relu(self.c(h)))[:, 0]


def slides(n):
    middle, radius = 2 + 6 * torch.rand(n, 2, 1, 1), 1.5 + 2 * torch.rand(n, 1, 1)
    inside = (((grid - middle) ** 2).sum(1) < radius ** 2).float()
    return (1.5 * inside + torch.randn(n, 10, 10))[:, None], inside


model = NucleusNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    optimizer.zero_grad()
    for _ in range(1 if step < 100 else 32):
        x, y = slides(4)
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()  # meant, from step 100 on: (loss / 32).backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 110 or step == 199:
        print(step, loss.item(), flush=True)
handle.detach()
