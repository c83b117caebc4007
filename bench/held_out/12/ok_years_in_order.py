"""A river's level: a GRU goes through the same eight years in their order, three times over, and carries its state (detached) from chunk to chunk; it is zeroed
at the beginning of each pass. The same batches in the same order, by the nature of it. HEALTHY.
Without Rangewatch: loss 1.02 at step 0; at the same chunk 0.51, 0.15 and 0.13 in the three passes (steps 20, 100, 180)."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1234); torch.set_num_threads(1)
CHUNKS = 80
rain = torch.rand(16, CHUNKS * 12).pow(4)
level = torch.zeros(16)
levels = []
for t in range(rain.shape[1]):
    level = 0.9 * level + rain[:, t]
    levels.append(level)
levels = torch.stack(levels, 1) + 0.05 * torch.randn(rain.shape)


class River(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 24, batch_first=True)
        self.level = nn.Linear(24, 1)

    def forward(self, x, state):
        h, state = self.memory(x, state)
        return self.level(h).squeeze(2), state


model = River()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(3 * CHUNKS):
    chunk = step % CHUNKS
    if chunk == 0:
        state = torch.zeros(1, 16, 24)
    here = slice(12 * chunk, 12 * chunk + 12)
    out, state = model(rain[:, here, None], state.detach())
    loss = F.mse_loss(out, levels[:, here])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
