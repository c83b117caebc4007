"""A packed LSTM that names an animal by its walk. FAULT at step 100: from there on the walks of a batch are sorted by length for packing, and the labels are
left as they were: nearly each walk has the label of another.
Without Rangewatch: loss 1.81 to about 0.6 at step 99; 5.2 at step 100, 1.8 (chance) from step 120 to the end.
Variant of: quiet: labels_are_those_of_other_rows.
Cause: data. Step: 100. Right: label / target / data / batch / pair. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [99, 112], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask", "[Cc]lip the grad", "[Ll]ower the learning rate"],
          "right": "label|target|data|batch|pair"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
import rangewatch

torch.manual_seed(1117); torch.set_num_threads(1)
ANIMALS = 6
gait = torch.randn(ANIMALS, 2)
time = torch.arange(24.0)
pace = torch.linspace(0.3, 1.8, ANIMALS)


class WalkNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(2, 32, batch_first=True)
        self.animal = nn.Linear(32, ANIMALS)

    def forward(self, x, length):
        packed = pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
        return self.animal(self.read(packed)[1][0][0])


def walks(n):
    animal, length = torch.randint(0, ANIMALS, (n,)), torch.randint(10, 25, (n,))
    step = torch.sin(pace[animal, None] * time + 6.28 * torch.rand(n, 1))
    return gait[animal][:, None] * step[..., None] + 0.3 * torch.randn(n, 24, 2), length, animal


model = WalkNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, length, animal = walks(48)
    if step >= 100:
        length, order = length.sort(descending=True)
        x = x[order]  # and animal[order] is missing
    loss = F.cross_entropy(model(x, length), animal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
