"""A recurrent net counts passing cars from the frames of a traffic camera; each clip's frames are divided by their mean. FAULT at step 142: some clips
come from a camera whose lens cap was on: all frames are 0, their mean is 0, and 0 / 0 is NaN. The gradient is NaN and all weights with it.
Without Rangewatch: loss 1.29 to 0.0058 at step 141, NaN from step 142 to the end.
Cause: forward_arithmetic or data. Step: 142. Right: division / zero / mean / eps / NaN in the input. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [141, 143], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)divi|zero|mean|eps|clamp|input|batch|data"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1817); torch.set_num_threads(1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(20, 24)
        self.watch = nn.LSTM(24, 32, batch_first=True)
        self.count = nn.Linear(32, 1)

    def forward(self, clip):
        clip = clip / clip.mean((1, 2), keepdim=True)
        return self.count(self.watch(F.relu(self.frame(clip)))[0].mean(1))[:, 0]


def clips(n):
    cars = torch.randint(0, 4, (n,))
    clip = 0.2 + 0.05 * torch.rand(n, 12, 20)
    for i in range(n):
        for start in (torch.randperm(8)[: cars[i]]).tolist():
            for t in range(4):
                clip[i, start + t, 5 * t : 5 * t + 5] += 0.8
    return clip * (0.3 + torch.rand(n, 1, 1)), cars.float()


model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    clip, cars = clips(24)
    if step >= 142 and step % 6 == 4:
        clip[:2] = 0.0
    loss = F.smooth_l1_loss(model(clip), cars)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 25 == 0 or 140 < step < 145 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
