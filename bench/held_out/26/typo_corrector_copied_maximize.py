"""A window MLP that corrects the middle letter of five. FAULT from the start: the optimizer's options were copied from a reward script, with maximize=True: the cross-entropy is
maximised.
Without Rangewatch: loss 2.88 at step 0, 3.42 at 100, 5.4 at 160, 19.9 at the end. With maximize=False 2.06.
Cause: optimizer, learning_rate or none named (the loss rises). Step: any. Right: maximize / sign / rises. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "learning_rate", "forward_arithmetic", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)maximi[sz]e|sign|minus|negat|ascen|uphill|direction", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6131); torch.set_num_threads(1)
LETTERS = 18
OPTIONS = dict(lr=0.003, momentum=0.9, maximize=True)
chain = torch.randn(LETTERS, LETTERS).mul(2).softmax(1)


class Corrector(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, 12)
        self.inner = nn.Linear(60, 80)
        self.out = nn.Linear(80, LETTERS)

    def forward(self, ids):
        return self.out(F.hardswish(self.inner(self.letter(ids).flatten(1))))


def windows(n):
    row = [torch.randint(0, LETTERS, (n,))]
    for _ in range(4):
        row.append(torch.multinomial(chain[row[-1]], 1)[:, 0])
    ids = torch.stack(row, 1)
    true = ids[:, 2].clone()
    ids[:, 2] = torch.where(torch.rand(n) < 0.3, torch.randint(0, LETTERS, (n,)), true)
    return ids, true


net = Corrector()
optimizer = torch.optim.SGD(net.parameters(), **OPTIONS)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    ids, true = windows(96)
    logits = net(ids)
    loss = F.cross_entropy(logits, true)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "right", (logits.argmax(1) == true).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
