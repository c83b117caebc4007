"""An LSTM reads the gauge of a harbour and says the next tide in decimetres (values to 9). The head of the hourly model is swapped for one with three outputs. FAULT from step 0: the head is swapped after the optimizer was built:
Adagrad holds the old head; the new one keeps its random weights, and an LSTM's outputs lie in -1 to 1.
Without Rangewatch: loss 3.64 to 2.6 to 3.0 from step 25 on (0.34 with the head in the optimizer).
Cause: optimizer. Step: 0. Right: build the optimizer after the swap / add the parameters. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["optimizer"], "step": [-1, 60], "place": r".*head.*", "rank": None,
          "right": "(?i)optimi[sz]er|param.?group|parameters", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(114); torch.set_num_threads(1)


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


net = Tide()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
net.head = nn.Linear(24, 3)
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    phase, high = 6.28 * torch.rand(48, 1), 3 + 6 * torch.rand(48, 1)
    level = high * torch.sin(phase + 0.5 * torch.arange(19.0))
    loss = F.l1_loss(net(level[:, :16, None] / 5), level[:, 16:])
    net.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
