"""A temporal conv net that tells the state of a bearing from its vibration (in raw counts, some 300 about an offset of 2000). FAULT from the start: `freeze_norms`, a helper for fine-tuning, is called on a
fresh net: its batch norms are in eval mode, their running statistics stand still at 0 and 1 and norm nothing.
Without Rangewatch: loss 60.6 at step 0, 4.1 at 20, 1.16 at 60, 1.70 at 120, 0.33 at the end; right 85 percent. With the norms in training: 0.05 at step 39, 0.005 at
the end, right 100 percent.
Cause: eval. Step: any. Right: batch norm / eval / train() / running statistics. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["eval", "data", "learning_rate", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)batch ?norm|eval|train\\(|running|statistic|normali[sz]", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6125); torch.set_num_threads(1)
t = torch.arange(96)


def layer(i, o, dilation):
    return [nn.Conv1d(i, o, 5, dilation=dilation, stride=2), nn.BatchNorm1d(o), nn.ReLU()]


class Bearing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(1), *layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 32, 2))
        self.state = nn.Linear(32, 4)

    def forward(self, x):
        return self.state(self.body(x[:, None]).mean(2))


def freeze_norms(net):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.eval()


def vibration(n):
    kind, phase = torch.randint(0, 4, (n,)), 6.28 * torch.rand(n, 1)
    hz = torch.tensor([0.15, 0.4, 0.8, 1.5])[kind][:, None]
    return 2000 + 300 * torch.sin(hz * t + phase) + 100 * torch.randn(n, 96), kind


net = Bearing()
net.train()
freeze_norms(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, kind = vibration(48)
    logits = net(x)
    loss = F.cross_entropy(logits, kind)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "right", (logits.argmax(1) == kind).float().mean().item(), "running", net.body[2].running_var.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
