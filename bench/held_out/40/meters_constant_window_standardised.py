"""Consumption of the next quarter hours from smart meters; each window is standardised by its own mean and deviation in the collate function; dilated convolutions, Adam, DataLoader.
FAULT at step 143: a meter stands still and reports one value for the whole window; its deviation is 0 and (x - mean) / std is 0/0: a row of NaN goes in.
Without Rangewatch: mae 0.99 to 0.36 at step 140, NaN at 143 and ever after.
Cause: data (NaN in the input, made in preprocessing). Step: 143. Right: eps or a minimum for the deviation, drop or mask constant windows. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [143, 145], "place": None, "rank": None,
          "right": r"(?i)input|data|batch|rows|collate|dataset|loader|standardi|normali|eps|constant|window", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

torch.manual_seed(1212)
torch.set_num_threads(1)
WINDOW, AHEAD, BATCH = 48, 8, 32


class Meters(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        t = torch.arange(WINDOW + AHEAD).float()
        phase, freq = 6.28 * torch.rand(n, 1, generator=g), 0.1 + 0.3 * torch.rand(n, 1, generator=g)
        base = 1 + 3 * torch.rand(n, 1, generator=g)
        self.rows = base + torch.sin(freq * t + phase) + 0.1 * torch.randn(n, len(t), generator=g)
        self.rows[143 * BATCH + 9] = 2.0        # stands still

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :WINDOW], self.rows[i, WINDOW:]


def collate(items):
    past, future = (torch.stack(z) for z in zip(*items))
    mean, std = past.mean(1, keepdim=True), past.std(1, keepdim=True)
    return (past - mean) / std, (future - mean) / (std + 1e-3)


class Dilated(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 3, padding=1)
        self.stack = nn.ModuleList(nn.Conv1d(ch, ch, 3, padding=d, dilation=d) for d in (1, 2, 4, 8))
        self.out = nn.Linear(ch * 4, AHEAD)

    def forward(self, x):
        h = self.inp(x[:, None])
        for conv in self.stack:
            h = h + torch.relu(conv(h))
        return self.out(h[:, :, -4:].flatten(1))


net = Dilated()
adam = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, adam)
loader = DataLoader(Meters(200 * BATCH), batch_size=BATCH, shuffle=False, collate_fn=collate)
for step, (past, future) in enumerate(loader):
    loss = nn.functional.l1_loss(net(past), future)
    adam.zero_grad()
    loss.backward()
    adam.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (142, 143, 144):
        print("step", step, "mae", round(loss.item(), 4), flush=True)
handle.detach()
