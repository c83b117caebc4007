"""A graph net that foretells the charge of each atom of a molecule; only some atoms are labelled, the loss is the mean over those. FAULT at step 117: the eight molecules
of that batch come from a file without any label: the sum of nothing is divided by a count of nothing.
Without Rangewatch: loss 5.87 to 0.061 at step 116, NaN from step 117 to the end.
Cause: data or forward_arithmetic. Step: 117. Right: label / empty / count / clamp. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [116, 120], "place": None, "rank": None,
          "right": "(?i)label|target|empty|count|divi|0 ?/ ?0|clamp|batch|input|ignore", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3001); torch.set_num_threads(1)
FILES_WITHOUT_CHARGES = range(936, 960)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.around = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, h, adjacency):
        return h + torch.relu(self.own(h) + self.around(adjacency @ h))


class ChargeNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.kind = nn.Embedding(6, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.charge = nn.Linear(width, 1)

    def forward(self, kinds, adjacency):
        h = self.kind(kinds)
        for layer in self.layers:
            h = layer(h, adjacency)
        return self.charge(h)[..., 0]


pull = torch.tensor([2.2, 2.55, 3.04, 3.44, 3.98, 2.58])


def molecule(index):
    g = torch.Generator().manual_seed(index)
    kinds = torch.randint(0, 6, (14,), generator=g)
    bonds = (torch.rand(14, 14, generator=g) < 0.15).float()
    bonds = ((bonds + bonds.T) > 0).float().fill_diagonal_(0)
    charge = bonds @ pull[kinds] - bonds.sum(1) * pull[kinds]
    known = torch.rand(14, generator=g) < 0.4
    if index in FILES_WITHOUT_CHARGES:
        known = torch.zeros(14, dtype=torch.bool)
    return kinds, bonds, charge, known


model = ChargeNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    kinds, bonds, charge, known = (torch.stack(t) for t in zip(*(molecule(step * 8 + k) for k in range(8))))
    error = (model(kinds, bonds / 3) - charge) ** 2
    loss = (error * known).sum() / known.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (116, 117, 118, 179):
        print(step, loss.item(), "labelled", known.sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
