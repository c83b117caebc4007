"""A small net wholly in float16 that sorts seeds by their light spectrum. FAULT at step 140: the weight of the middle layer makes a round trip through int8
(to see what an export would cost) and comes back divided by the scale instead of multiplied: its numbers are tens of thousands, just within float16, and
what the layer gives exceeds 65504.
Without Rangewatch: loss 1.80 to 0.27 at step 139, NaN from step 140 to the end.
Cause: weight (or forward_arithmetic, the overflow). Step: 140. Place: the middle layer or what follows. Right: weight / overflow / float16. Wrong: mask."""
EXPECT = {"cause": ["weight", "forward_arithmetic"], "step": [139, 141], "place": ".*middle.*|.*out.*|.*act.*", "rank": 0,
          "wrong": ["(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)weight|overflow|65504|checkpoint|float16|fp16|half"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1921); torch.set_num_threads(1)
SEEDS, BANDS = 6, 48


class Seeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry, self.middle, self.out = nn.Linear(BANDS, 64), nn.Linear(64, 64), nn.Linear(64, SEEDS)

    def forward(self, x):
        return self.out(torch.relu(self.middle(torch.relu(self.entry(x)))))


@torch.no_grad()
def round_trip(weight):
    scale = weight.abs().max() / 127
    whole = (weight / scale).round()
    weight.copy_(whole / scale)


spectra = torch.randn(SEEDS, BANDS).cumsum(1) / 3
model = Seeds().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    if step == 140:
        round_trip(model.middle.weight)
    y = torch.randint(0, SEEDS, (48,))
    x = (spectra[y] + 0.7 * torch.randn(48, BANDS)).half()
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143 or step == 189:
        print(step, loss.item(), "largest weight", model.middle.weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
