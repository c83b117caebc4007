"""Letters drawn in the air (accelerometer, 3 x 32 samples, eight letters), conv net, SGD with momentum, DataLoader with shuffle=False.
FAULT at step 0 (seen at the first change of letter, step 20): the recordings lie sorted by letter and are not shuffled: batches hold one letter only.
Without Rangewatch: loss 2.04 to 0.0008 within letter a, 13.2 at step 20 (first b), 0.9 at 30, 17.0 at 40 (first c), and so on, 50 at 300.
Cause: data (one class per batch). Step: from 0, peaks at 20, 40, 60 .... Right: shuffle. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [0, 45], "place": None, "rank": None,
          "right": r"(?i)shuffl|sort|order|batch|label|class", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

torch.manual_seed(26)
torch.set_num_threads(1)


class AirLetters(Dataset):
    """As on disk: a/0001 ... a/0640, b/0001 ..."""

    def __init__(self, letters=8, each=640):
        form = torch.randn(letters, 3, 8)
        form = nn.functional.interpolate(form, size=32, mode="linear")
        self.y = torch.arange(letters).repeat_interleave(each)
        self.x = form[self.y] * (1 + 0.2 * torch.randn(len(self.y), 1, 1)) + 0.8 * torch.randn(len(self.y), 3, 32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


net = nn.Sequential(
    nn.Conv1d(3, 24, 5, stride=2, padding=2), nn.ReLU(),
    nn.Conv1d(24, 32, 5, stride=2, padding=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 8, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
loader = DataLoader(AirLetters(), batch_size=32, shuffle=False)
step = 0
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 20 in (0, 1, 10):
            print(f"epoch {epoch} step {step} letter {'abcdefgh'[int(y[0])]} loss {loss.item():.4f}", flush=True)
        step += 1
handle.detach()
