"""A net that marks roofs for solar panels in pictures from the air. FAULT at step 75: the next shard lies on a network disk; each batch takes 120 ms to
come, while the step itself takes some 10 ms. Nothing is wrong with the learning; nine tenths of the time are waiting.
Without Rangewatch: 14 to 24 ms a step before, 131 to 136 after step 80; loss 0.31 to 0.06.
Cause: data_wait. Step: 75 or soon after. Right: data / loader / workers / wait. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data_wait", "straggler", "(none)", ""], "step": [70, 159], "place": None, "rank": None, "least": "info",
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)data|loader|worker|wait|prefetch"}
import time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
import rangewatch

torch.manual_seed(1928); torch.set_num_threads(1)


class Roofs(IterableDataset):
    def __iter__(self):
        for batch in range(160):
            if batch >= 75:
                time.sleep(0.12)
            corner = torch.randint(2, 8, (8, 2))
            y = torch.zeros(8, 1, 18, 18)
            for i, (r, c) in enumerate(corner.tolist()):
                y[i, 0, r:r + 8, c:c + 8] = 1
            tilt = torch.rand(8, 1, 1, 1)
            yield torch.cat((y * tilt, y * (1 - tilt), torch.zeros_like(y)), 1) + 0.4 * torch.randn(8, 3, 18, 18), y


model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
                      nn.Conv2d(12, 1, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
begin = time.perf_counter()
for step, (x, y) in enumerate(DataLoader(Roofs(), batch_size=None)):
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 19:
        print(step, loss.item(), "ms a step", 50 * (time.perf_counter() - begin), flush=True)
        begin = time.perf_counter()
handle.detach()
