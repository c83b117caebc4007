"""An x-vector network of speakers with pooling of mean and standard deviation; segments of a batch are cut to the shortest. FAULT at step 125: a segment
of three frames leaves one frame after the stride, whose unbiased std is 0 / 0. Without Rangewatch: loss 2.12 to 0.32 at step 124, NaN at step 125 and
then on; PyTorch warns "std(): degrees of freedom is <= 0".
Report: pyannote/pyannote-audio#1861 and its pull request 2047 (StatsPool gives NaN for a single frame).
Cause: forward arithmetic (or data). Step: 125. Right: std / length of the segment. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [125, 126], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "std|degrees|length|divi|batch|sample|input|data|frame|operation"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(614); torch.set_num_threads(1)
SPEAKERS = 8
voice = torch.randn(SPEAKERS, 20)


class StatsPool(nn.Module):
    def forward(self, x):
        return torch.cat([x.mean(-1), x.std(-1)], 1)


class XVector(nn.Module):
    def __init__(self):
        super().__init__()
        self.tdnn = nn.Sequential(nn.Conv1d(20, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, stride=3, padding=1), nn.ReLU())
        self.pool = StatsPool()
        self.embedding = nn.Linear(64, 32)
        self.head = nn.Linear(32, SPEAKERS)

    def forward(self, mel):
        return self.head(F.relu(self.embedding(self.pool(self.tdnn(mel)))))


model = XVector()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    y = torch.randint(0, SPEAKERS, (24,))
    frames = 3 if step == 125 else int(torch.randint(12, 40, ()))  # segments are cut to the shortest of the batch
    mel = voice[y][..., None] + 2 * torch.randn(24, 20, frames)
    loss = F.cross_entropy(model(mel), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (124, 125, 126):
        print(step, frames, loss.item(), flush=True)
handle.detach()
