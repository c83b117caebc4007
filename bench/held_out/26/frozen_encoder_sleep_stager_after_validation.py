"""Sleep stages from brain waves: a frozen random conv encoder (scattering) and a trained head with batch norm and dropout 0.5. FAULT at step 64: the validation calls eval() on the head
and nobody calls train() after it: from there on the head trains without dropout and with running statistics that stand still.
Without Rangewatch: loss 1.76 to 0.24 at step 63, 0.39 at 64, 0.05 to 0.15 at the end (dropout off); the running mean of the norm moves until 63 and then stands
at 0.0711 to the end.
Cause: eval, or none named. Step: 64. Right: eval / train(). Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["eval", "(none)"], "step": [63, 80], "place": None, "rank": None, "least": "info",
          "right": "(?i)eval|train\\(|dropout|running|batch ?norm", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6113); torch.set_num_threads(1)
t = torch.arange(128) / 64.0


class Stager(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 24, 15, 4), nn.LeakyReLU(), nn.Conv1d(24, 24, 5, 2), nn.LeakyReLU())
        self.head = nn.Sequential(nn.Linear(24 * 2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 5))
        self.encoder.requires_grad_(False)

    def forward(self, x):
        h = self.encoder(x[:, None])
        return self.head(torch.cat((h.mean(2), h.std(2)), 1))


def night(n, g=None):
    stage = torch.randint(0, 5, (n,), generator=g)
    hz = torch.tensor([1.5, 3.5, 6.5, 11.0, 19.0])[stage][:, None] * (1 + 0.1 * torch.randn(n, 1, generator=g))
    phase, loud = 6.28 * torch.rand(n, 1, generator=g), 0.5 + torch.rand(n, 1, generator=g)
    return loud * torch.sin(6.28 * hz * t + phase) + 0.4 * torch.randn(n, 128, generator=g), stage


def validate(net):
    net.eval()
    with torch.no_grad():
        x, y = night(500, torch.Generator().manual_seed(1))
        return (net(x).argmax(1) == y).float().mean().item()


net = Stager()
optimizer = torch.optim.AdamW(net.head.parameters(), lr=2e-3, weight_decay=0.02)
handle = rangewatch.attach(net, optimizer)
net.train()
for step in range(220):
    if step % 64 == 0 and step > 0:
        print("validation", validate(net))
    x, y = night(64)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (63, 64, 65, 219):
        print(step, loss.item(), "running mean of the norm", net.head[1].running_mean.abs().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
