"""A convolutional classifier in fp16 autocast with a GradScaler, and channel pruning by a group lasso. FAULT at step 100: the two weakest channels of
conv2 are set to zero, and the penalty sqrt(sum w^2) of a channel has no derivative at 0: its gradient is NaN at every step from there on. The
forward and the loss stay finite; the scaler skips every step and halves its scale each time: nothing is trained any more. Without Rangewatch: loss
1.8 to about 0.2, where it stays, finite; the scale is 8192 at step 99, 4096 at step 100, 0.004 at step 120, 3e-21 at step 180; the weights do not
move after step 99.
Report: pytorch/pytorch#2421 (derivative of the norm at zero is NaN), Junjue-Wang/FactSeg#6 (the loss scale is reduced until it is 0).
Cause: backward arithmetic; the loss scale only follows. Place: conv2. Right: eps / sqrt at zero / norm. Wrong: lower the learning rate, bfloat16,
data, a higher scale."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [100, 101], "place": r"conv2.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "leave out samples", "attention mask"],
          "right": "eps|sqrt|zero|norm|at 0"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(507); torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.head = nn.Linear(16 * 9, 6)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.head(F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1))


model, centres = Net(), torch.randn(6, 1, 12, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12, growth_interval=60)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    if step == 100:
        with torch.no_grad():
            weakest = model.conv2.weight.flatten(1).norm(dim=1).argsort()[:2]
            model.conv2.weight[weakest] = 0
            model.conv2.bias[weakest] = 0
    y = torch.randint(0, 6, (32,))
    x = centres[y] + 1.5 * torch.randn(32, 1, 12, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    w = model.conv2.weight.flatten(1)
    loss = F.cross_entropy(logits.float(), y) + 1e-3 * w.pow(2).sum(1).sqrt().sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    handle.log(loss=loss)
    if step % 20 == 0 or step in (99, 100, 101):
        print(step, loss.item(), scaler.get_scale(), flush=True)
handle.detach()
