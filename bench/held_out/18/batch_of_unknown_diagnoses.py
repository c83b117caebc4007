"""A recurrent net predicts the next diagnosis in a patient's history; unknown codes carry the target -1 and are masked out of the mean. FAULT at step 97:
the loader sorts by clinic, and one clinic has sent no codes: in its batch all targets are -1. The mean over no target is 0 / 0 = NaN, and the step is
taken.
Without Rangewatch: loss 3.38 to 1.65 at step 96, NaN from step 97 to the end; the batch of step 97 has 0 targets, others about 150.
Cause: data (no target in the batch), mask or forward_arithmetic. Step: 97. Right: ignore_index / no target / labels / empty / batch / divide. Wrong:
GradScaler, lower the rate, bfloat16."""
EXPECT = {"cause": ["data", "mask", "forward_arithmetic"], "step": [96, 98], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)lower the learning rate", "bfloat16"],
          "right": "(?i)ignore|target|label|empty|batch|divi|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1818); torch.set_num_threads(1)
CODES = 30
leads_to = torch.randint(0, CODES, (CODES,))


class History(nn.Module):
    def __init__(self):
        super().__init__()
        self.code = nn.Embedding(CODES, 20)
        self.history = nn.GRU(20, 40, num_layers=2, batch_first=True)
        self.next = nn.Linear(40, CODES)

    def forward(self, x):
        return self.next(self.history(self.code(x))[0])


def patients(n):
    codes = [torch.randint(0, CODES, (n,))]
    for _ in range(11):
        codes.append(torch.where(torch.rand(n) < 0.85, leads_to[codes[-1]], torch.randint(0, CODES, (n,))))
    codes = torch.stack(codes, 1)
    target = codes[:, 1:].clone()
    target[torch.rand(target.shape) < 0.3] = -1
    return codes[:, :-1], target


model = History()
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    codes, target = patients(20)
    if step == 97:
        target[:] = -1
    known = (target >= 0).float()
    each = F.cross_entropy(model(codes).transpose(1, 2), target.clamp(min=0), reduction="none")
    loss = (each * known).sum() / known.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 95 < step < 100 or step == 159:
        print(step, loss.item(), "targets", int((target >= 0).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
