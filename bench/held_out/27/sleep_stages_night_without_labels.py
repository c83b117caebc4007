"""A two-way LSTM that gives a stage of sleep to each half minute (Adadelta); minutes no expert judged have the label -1 and are left out of the mean. FAULT at step 104: the batch
is of nights that no expert has judged yet; the mean over no target is 0 / 0.
Without Rangewatch: loss 1.61 to 0.30 at step 103, NaN from step 104 and to the end.
Cause: data, mask or forward_arithmetic. Step: 104. Right: target / label / ignore. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["data", "mask", "forward_arithmetic"], "step": [103, 106], "place": None, "rank": None,
          "right": "(?i)target|label|ignore|empty|batch|zero|mean|mask|loss", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2730); torch.set_num_threads(1)
look = torch.randn(5, 6)


def nights(n, judged):
    stage = torch.randint(0, 5, (n, 1)).expand(n, 20).clone()
    for k in range(1, 20):
        turn = torch.rand(n) < 0.25
        stage[:, k] = torch.where(turn, torch.randint(0, 5, (n,)), stage[:, k - 1])
    signal = look[stage] + 1.2 * torch.randn(n, 20, 6)
    label = torch.where(torch.rand(n, 20) < judged, stage, torch.full_like(stage, -1))
    return signal, label


class Sleep(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 32, batch_first=True, bidirectional=True)
        self.stage = nn.Linear(64, 5)

    def forward(self, x):
        return self.stage(self.lstm(x)[0])


net = Sleep()
optimizer = torch.optim.Adadelta(net.parameters(), lr=2.0)
handle = rangewatch.attach(net, optimizer)
wards = [0.9, 0.6, 0.8, 0.7]
for step in range(170):
    judged = 0.0 if step == 104 else wards[step % 4]
    x, label = nights(16, judged)
    told = (label >= 0).float()
    each = F.cross_entropy(net(x).transpose(1, 2), label.clamp(min=0), reduction="none")
    loss = (each * told).sum() / told.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (103, 104, 105, 169):
        print(step, loss.item(), "judged", (label >= 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
