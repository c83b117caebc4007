"""A pointer network learns by imitation to visit seven towns from west to east; AdamW. The towns already visited get a logit of -inf.
HEALTHY: a good part of the logits is -inf in every step (they are outputs of the module `mask_visited`), never a whole row, and softmax makes exact zeros of them.
Without Rangewatch: loss 1.22 to 0.02, 43 % of the logits are -inf in every step."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3723); torch.set_num_threads(1)
TOWNS = 7


class MaskVisited(nn.Module):
    def forward(self, logits, visited):
        return logits.masked_fill(visited, float("-inf"))


class Pointer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.town = nn.Sequential(nn.Linear(2, d), nn.ReLU(), nn.Linear(d, d))
        self.cell = nn.GRUCell(d, d)
        self.ask = nn.Linear(d, d)
        self.mask_visited = MaskVisited()

    def forward(self, places, order):
        towns = self.town(places)
        state = towns.mean(1)
        visited = torch.zeros(places.shape[:2], dtype=torch.bool)
        rows, out = torch.arange(len(places)), []
        for k in range(TOWNS):
            logits = (towns @ self.ask(state)[:, :, None])[..., 0] / 32 ** 0.5
            out.append(self.mask_visited(logits, visited))
            visited = visited.clone()
            visited[rows, order[:, k]] = True
            state = self.cell(towns[rows, order[:, k]], state)
        return torch.stack(out, 1)


net = Pointer()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    places = torch.rand(32, TOWNS, 2)
    order = places[:, :, 0].argsort(1)
    logits = net(places, order)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), order.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, f"loss {loss.item():.4f} -inf: {logits.isinf().float().mean().item():.2f} of the logits", flush=True)
    handle.log(loss=loss.item())
handle.detach()
