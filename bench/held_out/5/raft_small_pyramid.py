"""A small optical flow network as RAFT: features at a quarter, a correlation pyramid of three levels, lookups by grid_sample, three refinements by a
GRU. FAULT at step 100: the crops get smaller, from 32 x 32 to 16 x 16: the coarsest level is 1 x 1 and coordinates are divided by (width - 1) = 0:
what is looked up is NaN. Without Rangewatch: loss 1.43 to 0.67 at step 99, NaN at step 100 and from there on.
Report: pytorch/vision#7338 and #7339 (RAFT predicts NaN below 128 x 128, a division by zero at the lowest resolution), princeton-vl/RAFT#75.
Cause: forward arithmetic, a division by zero in the lookup. Right: division / size / zero / levels. Wrong: learning rate, attention mask,
GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [100, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|0 / 0|zero|eps|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(504); torch.set_num_threads(1)
LEVELS, R = 3, 1


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1))
        self.motion = nn.Conv2d(LEVELS * (2 * R + 1) ** 2 + 2, 24, 3, padding=1)
        self.update, self.head = nn.GRUCell(24, 24), nn.Linear(24, 2)

    def lookup(self, pyramid, coords):
        b, h, w, _ = coords.shape
        d = torch.arange(-R, R + 1).float()
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1).reshape(1, -1, 1, 2)
        found = []
        for level, corr in enumerate(pyramid):
            at = coords.reshape(b * h * w, 1, 1, 2) / 2 ** level + delta
            height, width = corr.shape[-2:]
            grid = torch.cat([2 * at[..., :1] / (width - 1) - 1, 2 * at[..., 1:] / (height - 1) - 1], -1)
            found.append(F.grid_sample(corr, grid, align_corners=True).reshape(b, h, w, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    def forward(self, one, two):
        f1, f2 = self.features(one), self.features(two)
        b, c, h, w = f1.shape
        corr = torch.einsum("bcn,bcm->bnm", f1.flatten(2), f2.flatten(2)).reshape(b * h * w, 1, h, w) / c ** 0.5
        pyramid = [corr]
        for _ in range(LEVELS - 1):
            pyramid.append(F.avg_pool2d(pyramid[-1], 2))
        yy, xx = torch.meshgrid(torch.arange(h).float(), torch.arange(w).float(), indexing="ij")
        start = torch.stack([xx, yy], -1).expand(b, h, w, 2)
        flow, hidden, flows = torch.zeros(b, h, w, 2), torch.tanh(f1).permute(0, 2, 3, 1).reshape(-1, c), []
        for _ in range(3):
            seen = torch.cat([self.lookup(pyramid, start + flow.detach()), flow.detach().permute(0, 3, 1, 2)], 1)
            hidden = self.update(F.relu(self.motion(seen)).permute(0, 2, 3, 1).reshape(-1, 24), hidden)
            flow = flow.detach() + self.head(hidden).reshape(b, h, w, 2)
            flows.append(flow)
        return flows


def batch(size, n=16):
    big = F.interpolate(torch.randn(n, 1, (size + 16) // 4, (size + 16) // 4), size=(size + 16, size + 16), mode="bicubic")
    shift = torch.randint(-4, 5, (n, 2))
    one = big[:, :, 8:8 + size, 8:8 + size]
    two = torch.stack([big[i, :, 8 - v:8 - v + size, 8 - u:8 - u + size] for i, (u, v) in enumerate(shift.tolist())])
    return one, two, shift.float() / 4


model = Flow()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    one, two, flow = batch(32 if step < 100 else 16)
    flows = model(one, two)
    loss = sum(0.8 ** (2 - i) * (each - flow[:, None, None]).abs().mean() for i, each in enumerate(flows))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (99, 100, 101):
        print(step, loss.item(), flush=True)
handle.detach()
