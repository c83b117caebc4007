"""A classifier of birds with a long tail; from step 60 the logits are adjusted by the log prior, a buffer with persistent=False. FAULT from the start: the net is made on `meta`,
given memory by to_empty() and filled from a checkpoint, in which that buffer is not: it holds what the memory was (with deterministic algorithms: NaN). It is first
read at step 60.
Without Rangewatch: loss 1.73 to 0.008 at step 59, NaN from 60.
Cause: weight (a buffer without values), forward_arithmetic or data. Step: 60 (there from the start). Right: buffer / checkpoint / to_empty / initialise. Wrong: GradScaler,
lower the learning rate."""
EXPECT = {"cause": ["weight", "forward_arithmetic", "data"], "step": [0, 62], "place": None, "rank": None,
          "right": "(?i)buffer|checkpoint|to_empty|uninitiali|initiali|persistent|load|log_prior", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6120); torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
prior = torch.tensor([40.0, 20, 10, 5, 3, 2]); prior /= prior.sum()


class Birds(nn.Module):
    def __init__(self):
        super().__init__()
        self.song = nn.Sequential(nn.Linear(20, 64), nn.Mish(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Mish())
        self.name = nn.Linear(32, 6)
        self.register_buffer("log_prior", prior.log(), persistent=False)

    def forward(self, x, adjust):
        logits = self.name(self.song(x))
        return logits + self.log_prior if adjust else logits


checkpoint = Birds().state_dict()
with torch.device("meta"):
    net = Birds()
net = net.to_empty(device="cpu")
net.load_state_dict(checkpoint)
centre = 1.2 * torch.randn(6, 20)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    y = torch.multinomial(prior, 64, replacement=True)
    x = centre[y] + torch.randn(64, 20)
    loss = F.cross_entropy(net(x, adjust=step >= 60), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (59, 60, 61, 159):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
