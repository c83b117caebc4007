"""A one-dimensional convolutional net that tells quakes from blasts; two workers of a DataLoader standardise each row by its own mean and deviation, and
load four batches ahead. FAULT at step 120: row 3 of that batch comes from a station that was switched off, all one value: 0 / 0 is NaN. (It was read
by a worker many steps before it is used.)
Without Rangewatch: loss 0.78 to 0.012 at step 119, NaN at step 120 and at each step after it.
Cause: data. Step: 120. Right: data / row / batch / input / deviation. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["data"], "step": [119, 121], "place": None, "rank": 0,
          "right": "(?i)data|input|batch|row|sample|deviation|std", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

BATCH = 24


class Traces(Dataset):
    def __len__(self):
        return 200 * BATCH

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        blast = i % 2
        t = torch.arange(64.0)
        onset = torch.randint(5, 25, (1,), generator=g)
        pitch = 0.9 if blast else 0.45
        decay = 0.12 if blast else 0.05
        trace = (t >= onset) * torch.exp(-decay * (t - onset).clamp(min=0)) * torch.sin(pitch * (t - onset))
        trace = trace + 0.25 * torch.randn(64, generator=g)
        if i == 120 * BATCH + 3:
            trace = torch.full((64,), 0.5)
        return ((trace - trace.mean()) / trace.std())[None], blast


def main():
    torch.manual_seed(2104)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv1d(1, 24, 7, padding=3), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
                        nn.Conv1d(24, 48, 5, padding=2), nn.BatchNorm1d(48), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(192, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    handle = rangewatch.attach(net, optimizer)
    for step, (x, y) in enumerate(DataLoader(Traces(), BATCH, num_workers=2, prefetch_factor=4)):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or 118 < step < 123 or step == 199:
            print(step, loss.item(), flush=True)
        handle.log(loss=loss.item())
    handle.detach()


if __name__ == "__main__":
    main()
