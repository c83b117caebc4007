"""A net for the energy of small molecules: a known self-energy for each element plus a learned part from pair features. It is resumed from a checkpoint (Adam).
FAULT from the start: the checkpoint was stored in half precision to save room; the self-energy of one element is -75000 and becomes -inf.
Without Rangewatch: loss 0.19 at the end of the first stage, inf at step 0 of the second, NaN from step 1.
Cause: weight (or data, the checkpoint; forward_arithmetic). Step: 0. Place: the table of self-energies. Right: checkpoint / inf / load / weight. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["weight", "data"], "step": [0, 3], "place": "own.*", "rank": None,
          "right": "(?i)checkpoint|load|inf|weight|initial|before the (training|first)|parameter", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import io
import torch
from torch import nn
import rangewatch

torch.manual_seed(2717); torch.set_num_threads(1)
SELF = torch.tensor([[-500.0], [-38000.0], [-54600.0], [-75000.0]])      # H, C, N, O in milli-units


def molecules(n):
    kinds = torch.randint(0, 4, (n, 6))
    pair = torch.randn(n, 12)
    bond = torch.sin(pair[:, :1]) * pair[:, 1:2] + 0.5 * pair[:, 2:3]
    return kinds, pair, SELF[kinds].sum(1) + bond


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Embedding(4, 1)
        self.learned = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, kinds, pair):
        return self.own(kinds).sum(1) + self.learned(pair)


def train_first_stage():
    net = Energy()
    net.own.weight.data.copy_(SELF)
    net.own.weight.requires_grad_(False)
    opt = torch.optim.Adam(net.learned.parameters(), lr=2e-3)
    for k in range(80):
        kinds, pair, e = molecules(64)
        loss = (net(kinds, pair) - e).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    print("first stage", loss.item(), flush=True)
    file = io.BytesIO()
    torch.save({k: v.half() for k, v in net.state_dict().items()}, file)
    file.seek(0)
    return file


net = Energy()
file = train_first_stage()
net.load_state_dict(torch.load(file))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    kinds, pair, e = molecules(64)
    loss = (net(kinds, pair) - e).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 159):
        print(step, loss.item(), net.own.weight.flatten().tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
