"""A gated recurrent net that counts steps from an accelerometer; the loss is scaled by 1e8 by hand (a habit from another machine) and each gradient divided
by it before the step. FAULT at step 125: once the division is left out (a branch for a retried batch), so all gradients are 1e8 times as large in one update
of SGD.
Without Rangewatch: loss 0.99 to 0.03 at step 124, 0.035 at step 125, 2e11 at step 126, 8e11 at step 128, 8e9 at the end.
Causes: loss_scale (not unscaled), backward_arithmetic, clip (there is none), optimizer. Right: scale / gradient / clip. Wrong: mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "clip", "optimizer"], "step": [124, 127], "place": None, "rank": 0,
          "right": "(?i)scal|gradient|clip", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2329); torch.set_num_threads(1)
SCALE = 1e8


class StepCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = nn.Conv1d(3, 20, 5, stride=2)
        self.rnn = nn.GRU(20, 32, batch_first=True)
        self.count = nn.Linear(32, 1)

    def forward(self, x):
        return self.count(self.rnn(torch.tanh(self.window(x)).mT)[1][0])[:, 0]


model = StepCounter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
handle = rangewatch.attach(model, optimizer)
t = torch.arange(60) / 60
for step in range(210):
    steps = 2 + 8 * torch.rand(40)
    phase = 6.2832 * (steps[:, None] * t + torch.rand(40, 1))
    x = torch.stack((phase.sin(), phase.cos() ** 2, 0.5 * (2 * phase).sin()), 1) + 0.2 * torch.randn(40, 3, 60)
    loss = nn.functional.mse_loss(model(x), (steps - 6) / 2)
    optimizer.zero_grad()
    (loss * SCALE).backward()
    retried = step == 125
    if not retried:
        for p in model.parameters():
            p.grad /= SCALE
    optimizer.step()
    if step % 20 == 0 or 123 < step < 129 or step == 209:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
