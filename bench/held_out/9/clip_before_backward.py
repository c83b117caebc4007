"""The adding problem with an IRNN (recurrent ReLU), SGD, sequences of 10 numbers and from step 120 on of 60. FAULT: clip_grad_norm_(0.5) stands between
zero_grad and backward, where there is nothing to clip. The first gradient of the long sequences goes in whole.
Without Rangewatch: loss 1.13 to 0.20 at step 119, 1.0 at step 120 with a gradient norm of 301, 1e16 at step 121, NaN from step 122 on; clipped at the right
place it goes up to 17 and is 0.17 at the end.
Report: yandex-research/tabm#20 (clipping before backward), Cranial-XIX/FAMO#4, awslabs/graphstorm#1382, VGraphRNN/VGRNN#4 (after the step).
Cause: clip (or learning_rate). Step: 120 to 122. Right: clip / gradient norm / explodes. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["clip", "learning_rate"], "step": [118, 130], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "clip|gradient norm|explod|learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(814); torch.set_num_threads(1)


class Adding(nn.Module):  # an IRNN: a recurrent layer of ReLU that begins as the identity
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(2, 64, nonlinearity="relu", batch_first=True)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.zeros_(self.rnn.bias_hh_l0)
        nn.init.zeros_(self.rnn.bias_ih_l0)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.05)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[1][0]).squeeze(1)


def batch(n, length):
    numbers, marks = torch.rand(n, length), torch.zeros(n, length)
    rows = torch.arange(n)
    marks[rows, torch.randint(0, length // 2, (n,))] = 1
    marks[rows, torch.randint(length // 2, length, (n,))] = 1
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(1)


model = Adding()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, y = batch(32, 10 if step < 120 else 60)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # there is nothing to clip yet
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 125 or step == 299:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
