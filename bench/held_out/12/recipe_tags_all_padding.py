"""Minutes of cooking from a recipe's tags (ids, 0 is padding) and its weights: a convolution over the tags, their maximum, where padding is filled with the
smallest float32. FAULT at step 78: one recipe has no tag, all its ids are padding; its maximum is -3.4e38 in each channel, and the next layer's sum is inf.
Without Rangewatch: loss 1.26 to 0.128 at step 77, NaN from step 78 on.
Variant of: maximum_of_ids_that_are_all_padding.
Cause: mask (data or forward_arithmetic would do). Step: 78. Right: mask / padding / empty / fill. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [77, 79], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "mask|padding|empty|fill|no (words|tags|tokens|entries|elements)|max"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1225); torch.set_num_threads(1)
TAGS = 40
minutes = torch.randn(TAGS).abs()


class Cooking(nn.Module):
    def __init__(self):
        super().__init__()
        self.tag = nn.Embedding(TAGS, 24)
        self.around = nn.Conv1d(24, 32, 3, padding=1)
        self.amounts = nn.Linear(5, 32)
        self.out = nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, ids, amounts):
        h = self.around(self.tag(ids).transpose(1, 2))
        h = h.masked_fill((ids == 0)[:, None], torch.finfo(h.dtype).min).amax(2)
        return self.out(torch.cat([h, F.silu(self.amounts(amounts))], 1)).squeeze(1)


model = Cooking()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    ids = torch.randint(1, TAGS, (32, 8))
    ids[torch.arange(8) >= torch.randint(1, 9, (32, 1))] = 0
    if step == 78:
        ids[13] = 0
    amounts = torch.rand(32, 5)
    y = (minutes[ids] * (ids > 0)).amax(1) + amounts.sum(1) - 2.5 + 0.1 * torch.randn(32)
    loss = F.smooth_l1_loss(model(ids, amounts), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (77, 78, 79, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
